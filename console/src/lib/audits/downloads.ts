/** What is taken away from an audit: CSV, the records of its rankings, and a report that is one file. */

import { decimal } from "../format";
import { csv } from "../files";
import { page, safe, table } from "../report";
import type { Running } from "../means";
import type { Audit } from "./audit.svelte";
import { dialName, TRADEOFFS, type Quantity } from "./curves";
import { runOf, UtilityMetric, type Plan } from "./plan";

/** Return one row for each question and dial. */
export function rowsOf(audit: Audit): string {
  const names = ["query_id", "question", "dial", "alpha", "rankings", "answered", "disparity", "disparity_exact", "relevance", "utility", "normalized_utility"];
  const rows = [...audit.outcomes].flatMap(([place, { levels }]) => {
    const { id, question } = audit.plan.questions[place]!;
    return levels.map((one) => [
      id,
      question,
      one.alpha === undefined ? "no sampling" : "sampled",
      one.alpha,
      one.rankings,
      one.answered,
      one.disparity,
      one.exact ? 1 : 0,
      one.relevance,
      one.utility,
      one.normalized,
    ]);
  });
  return csv([names, ...rows]);
}

/** Return what an audit asked, as names and values. */
export function factsOf(plan: Plan): [string, string][] {
  const labelled = plan.questions.filter((one) => one.useful !== undefined).length;
  return [
    ["begun", new Date(plan.createdAt).toISOString().slice(0, 16).replace("T", " ") + " UTC"],
    ["questions", `${plan.questions.length}, ${labelled} of them with labels`],
    ["collection", plan.collection],
    ["retriever", plan.retriever || "default"],
    ["reranker", plan.reranker || "default"],
    ["model", plan.answers ? plan.model || "default" : "none: exposure alone"],
    ["passages shown", `${plan.k} of ${plan.depth} found`],
    ["dials (α)", plan.alphas.join(", ")],
    ["rankings of each dial", String(plan.samples)],
    ...(plan.answers ? [["answers scored by", UtilityMetric[plan.metric]!.toLowerCase().replaceAll("_", " ")] as [string, string]] : []),
    ["run of the evaluator", runOf(plan)],
  ];
}

/** Return a mean, and its interval if it has one, in words. */
export function parts(value: Running): { mean: string; interval: string } {
  const interval = Number.isNaN(value.low) ? "" : `${decimal(value.low, 3)} to ${decimal(value.high, 3)}`;
  return { mean: decimal(value.mean, 3), interval };
}

function inWords(value: Running | undefined): string {
  if (!value) return "–";
  const { mean, interval } = parts(value);
  return interval ? `${mean} (${interval})` : mean;
}

export const COLUMNS: { quantity: Quantity; name: string }[] = [
  { quantity: "disparity", name: "disparity" },
  { quantity: "relevance", name: "relevance" },
  { quantity: "utility", name: "utility" },
  { quantity: "normalized", name: "utility beside the best" },
];

/** Return the slope and the area of a tradeoff in words; empty before they are measured. */
export function slopeOf(audit: Audit, quantity: (typeof TRADEOFFS)[number]["quantity"]): string {
  const found = audit.tradeoffs.get(quantity);
  const words = (name: string, value: { value?: number; low?: number; high?: number } | undefined): string =>
    value?.value === undefined
      ? ""
      : `${name} ${decimal(value.value, 3)}${value.low === undefined || value.high === undefined ? "" : ` (${decimal(value.low, 3)} to ${decimal(value.high, 3)})`}`;
  return [words("slope", found?.slope), words("mean height", found?.auc)].filter(Boolean).join(", ").replaceAll("-", "−");
}

/** Return the report: one HTML file without scripts that loads nothing; `figures` are SVG, in the order of the tradeoffs. */
export function report(audit: Audit, figures: string[]): string {
  const { plan, means } = audit;
  const columns = COLUMNS.filter(({ quantity }) => means.some((one) => one.means[quantity]));
  const of = [...audit.outcomes.values()].filter((one) => !one.refused).length;
  const drawn = TRADEOFFS.filter(({ quantity }) => means.some((one) => one.means[quantity])).map(
    ({ quantity, title }, index) => `<h2>${safe(title)}</h2>${figures[index] ?? ""}<p>${safe(slopeOf(audit, quantity))}</p>`,
  );
  return page(
    plan.name,
    `<p>An audit by evenmesh: ${of} of ${plan.questions.length} questions. Means over questions with 95 % intervals by Student's distribution;
slope and mean height of the curves with 95 % BCa bootstrap intervals over questions, by the evaluator. Disparity is EE-D over its bound
${means.every((one) => one.exact) ? "from exact inclusion probabilities" : "over the sampled rankings"}, relevance EE-R over its bound;
utility beside the best is the expected utility of a question over the largest of any of its rankings.</p>
${drawn.join("\n")}
<h2>Every dial</h2>
${table(
  means.map((one) => [
    dialName(one.alpha),
    String(one.questions),
    String(one.rankings),
    ...(plan.answers ? [String(one.answered)] : []),
    ...columns.map(({ quantity }) => inWords(one.means[quantity])),
  ]),
  ["dial", "questions", "rankings", ...(plan.answers ? ["answered"] : []), ...columns.map((one) => one.name)],
)}
<h2>What was asked</h2>
${table(factsOf(plan))}
${audit.refused.length ? `<h2>Left out</h2>${table(audit.refused.map((one) => [one.id, one.why]))}` : ""}`,
  );
}
