/** Running means with Student's 95 % interval, as the evaluator reports them for a whole run. */

export interface Running {
  at: number;
  mean: number;
  low: number;
  high: number;
}

/** Return the mean of the first one, two, … values with its interval; one value alone has none. */
export function runningMeans(values: { at: number; value: number }[]): Running[] {
  let mean = 0;
  let squares = 0;
  return values.map(({ at, value }, index) => {
    const count = index + 1;
    const step = value - mean;
    mean += step / count;
    squares += step * (value - mean);
    const half = count < 2 ? Number.NaN : student(count - 1) * Math.sqrt(squares / (count - 1) / count);
    return { at, mean, low: mean - half, high: mean + half };
  });
}

/**
 * Return the 97.5 % quantile of Student's distribution: tabulated for one to three degrees of freedom, then by the
 * expansion of Cornish and Fisher (Abramowitz and Stegun, 26.7.5), to 0.003.
 */
export function student(freedom: number): number {
  const known = [12.7062, 4.3027, 3.1824][freedom - 1];
  if (known !== undefined) return known;
  const z = 1.959964;
  const terms = [
    (z ** 3 + z) / 4,
    (5 * z ** 5 + 16 * z ** 3 + 3 * z) / 96,
    (3 * z ** 7 + 19 * z ** 5 + 17 * z ** 3 - 15 * z) / 384,
    (79 * z ** 9 + 776 * z ** 7 + 1482 * z ** 5 - 1920 * z ** 3 - 945 * z) / 92160,
  ];
  return terms.reduce((sum, term, index) => sum + term / freedom ** (index + 1), z);
}
