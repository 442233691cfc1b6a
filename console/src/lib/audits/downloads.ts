/** What is taken away from an audit: CSV, the records of its rankings, and a report that is one file. */

import { decimal } from "../format";
import { csv } from "../files";
import { page, safe, table } from "../report";
import type { Running } from "../means";
import type { Audit } from "./audit.svelte";
import { comparable, dialName, TRADEOFFS, type Quantity, type Tradeoff } from "./curves";
import { runOf, systemHead, systemName, UtilityMetric, type Plan } from "./plan";

/** Return one row for each question, system and dial, of the questions that every system was asked. */
export function rowsOf(audit: Audit): string {
  const names = ["query_id", "question", "retriever", "model", "dial", "alpha", "rankings", "answered", "disparity", "disparity_exact", "relevance", "utility", "normalized_utility"];
  const rows = comparable(audit.plan, audit.outcomes).flatMap(({ at, system, levels }) => {
    const { id, question } = audit.plan.questions[at]!;
    const { retriever, model } = audit.systems[system]!;
    return levels.map((one) => [
      id,
      question,
      retriever || "default",
      audit.plan.answers ? model || "default" : "none",
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
export function factsOf({ plan, systems }: Audit): [string, string][] {
  const names = (of: string[]): string => of.map((one) => one || "default").join(", ");
  const labelled = plan.questions.filter((one) => one.useful !== undefined).length;
  return [
    ["begun", new Date(plan.createdAt).toISOString().slice(0, 16).replace("T", " ") + " UTC"],
    ["questions", `${plan.questions.length}, ${labelled} of them with labels`],
    ["collection", plan.collection],
    [plan.retrievers.length > 1 ? "retrievers" : "retriever", names(plan.retrievers)],
    ["reranker", plan.reranker || "default"],
    [plan.models.length > 1 ? "models" : "model", plan.answers ? names(plan.models) : "none: exposure alone"],
    ["passages shown", `${plan.k} of ${plan.depth} found`],
    ["dials (α)", plan.alphas.join(", ")],
    ["rankings of each dial", String(plan.samples)],
    ...(plan.answers ? [["answers scored by", UtilityMetric[plan.metric]!.toLowerCase().replaceAll("_", " ")] as [string, string]] : []),
    [systems.length > 1 ? "runs of the evaluator" : "run of the evaluator", systems.map((one) => runOf(plan, one)).join(", ")],
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

/** Return the slope and the area of a tradeoff of a system in words; empty before they are measured. */
export function slopeOf(audit: Audit, system: number, quantity: Tradeoff): string {
  const found = audit.tradeoffs[system]?.get(quantity);
  const words = (name: string, value: { value?: number; low?: number; high?: number } | undefined): string =>
    value?.value === undefined
      ? ""
      : `${name} ${decimal(value.value, 3)}${value.low === undefined || value.high === undefined ? "" : ` (${decimal(value.low, 3)} to ${decimal(value.high, 3)})`}`;
  return [words("slope", found?.slope), words("mean height", found?.auc)].filter(Boolean).join(", ").replaceAll("-", "−");
}

/** Return the report: one HTML file without scripts that loads nothing; `figures` are SVG, in the order of the tradeoffs. */
export function report(audit: Audit, figures: string[]): string {
  const { plan, means, systems } = audit;
  const columns = COLUMNS.filter(({ quantity }) => means.some((one) => one.means[quantity]));
  const of = new Set(comparable(plan, audit.outcomes).map((one) => one.at)).size;
  const slopes = (quantity: Tradeoff): string[][] =>
    systems.flatMap((one, system) => (slopeOf(audit, system, quantity) ? [[systemName(plan, one), slopeOf(audit, system, quantity)]] : []));
  const drawn = TRADEOFFS.filter(({ quantity }) => means.some((one) => one.means[quantity])).map(
    ({ quantity, title }, index) => `<h2>${safe(title)}</h2>${figures[index] ?? ""}${systems.length > 1 ? table(slopes(quantity)) : `<p>${safe(slopeOf(audit, 0, quantity))}</p>`}`,
  );
  return page(
    plan.name,
    `<p>An audit by evenmesh: ${of} of ${plan.questions.length} questions. Means over questions with 95 % intervals, Student's after two values more, 0 and 1;
slope and mean height of the curves with 95 % BCa bootstrap intervals over questions, by the evaluator. Disparity is EE-D over its bound
${means.every((one) => one.exact) ? "from exact inclusion probabilities" : "over the sampled rankings"}, relevance EE-R over its bound;
utility beside the best is the expected utility of a question over the largest of any of its rankings${plan.models.length > 1 ? " that the same model answered" : ""}.</p>
${drawn.join("\n")}
<h2>Every dial</h2>
${table(
  means.map((one) => [
    ...(systems.length > 1 ? [systemName(plan, systems[one.system]!)] : []),
    dialName(one.alpha),
    String(one.questions),
    String(one.rankings),
    ...(plan.answers ? [String(one.answered)] : []),
    ...columns.map(({ quantity }) => inWords(one.means[quantity])),
  ]),
  [...(systems.length > 1 ? [systemHead(plan)] : []), "dial", "questions", "rankings", ...(plan.answers ? ["answered"] : []), ...columns.map((one) => one.name)],
)}
<h2>What was asked</h2>
${table(factsOf(audit))}
${audit.refused.length ? `<h2>Left out</h2>${table(audit.refused.map((one) => [one.id, one.why]))}` : ""}`,
  );
}
