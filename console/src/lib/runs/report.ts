/** The report of a run: what the evaluator measured, in one file. */

import type { Estimate } from "evenmesh/gen/evenmesh/common/v1/common_pb.js";
import type { RunReport } from "evenmesh/gen/evenmesh/evaluator/v1/evaluator_service_pb.js";

import { count, estimate, ofSome, percent, when } from "../format";
import { UNKNOWN } from "../providers";
import { page, safe, table } from "../report";

/** One quantity of the report, and that of the run beside it if there is one. */
export interface Row {
  name: string;
  value: Estimate | undefined;
  second: Estimate | undefined;
  /** What the mean is over: "ask" or "conversation". */
  unit: string;
}

/** What a report of a run is made of. */
export interface Content {
  run: string;
  report: RunReport;
  /** Which asks count, such as `all asks`. */
  span: string;
  /** Configurations that answered. */
  configurations: string[];
  rows: Row[];
  /** Name of the run beside it; empty for none. */
  against: string;
  /** Number of its asks. */
  asksBeside: bigint;
  /** A quantity over time, as SVG; empty for none. */
  figure: string;
  /** Name of that quantity. */
  drawn: string;
}

/** Return a mean, its interval, and over how many it is where that is not all, in words. */
function inWords(value: Estimate | undefined, some = ""): string {
  const { mean, interval } = estimate(value, 3);
  return [mean, interval && `(${interval})`, some].filter(Boolean).join(" ");
}

/** Return the report: one HTML file without scripts that loads nothing. */
export function report({ run, report, span, configurations, rows, against, asksBeside, figure, drawn }: Content): string {
  const beside = against ? [`${against}, all asks`] : [];
  return page(
    run,
    `<p>A run of evenmesh, ${safe(span)}: ${count(report.numObservations)} asks, ${count(report.numRankings)} rankings,
until ${safe(when(report.updatedAt?.seconds))}. Means over asks with 95 % intervals, by the evaluator; where not all asks have
a quantity, it says how many do. Disparity is EE-D over its
bound (1 in an ask that drew one ranking), relevance EE-R over its bound; utility beside the best is the expected utility of a question over the largest that was seen.</p>
<h2>What was measured</h2>
${table(
  rows.map(({ name, value, second, unit }) => [
    name,
    inWords(value, ofSome(value, report.numObservations, unit)),
    ...(against ? [inWords(second, ofSome(second, asksBeside, unit))] : []),
  ]),
  ["quantity", run, ...beside],
)}
<h2>Who was shown</h2>
<p>Exposure of each provider in an ask, and its part of all exposure.</p>
${table(
  report.providers.map((one) => [one.name || UNKNOWN, inWords(one.perObservation), percent(one.share, 1)]),
  ["provider", "exposure", "part"],
)}
${figure ? `<h2>Over time: ${safe(drawn)}</h2>${figure}<p>Dots are asks; the line is the mean up to then, with its 95 % interval, Student's after two values more, 0 and 1.</p>` : ""}
<h2>What answered</h2>
${table(configurations.map((one) => [one]))}`,
  );
}
