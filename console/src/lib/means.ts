/**
 * Running means of values from 0 to 1 with their 95 % interval, as the evaluator reports them for a whole run:
 * Student's, after two values more, 0 and 1.
 */

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
    if (count < 2) return { at, mean, low: Number.NaN, high: Number.NaN };
    const size = count + 2;
    const middle = (count * mean + 1) / size;
    const spread = squares + count * (mean - middle) ** 2 + middle ** 2 + (1 - middle) ** 2;
    const half = student(size - 1) * Math.sqrt(spread / (size - 1) / size);
    return { at, mean, low: Math.max(0, Math.min(middle - half, mean)), high: Math.min(1, Math.max(middle + half, mean)) };
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
