/** What is taken away from an audit: CSV, the records of its rankings, and a report that is one file. */

import { decimal } from "../format";
import { csv } from "../files";
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

/** Return a mean and its interval in words. */
export function inWords(value: Running | undefined): string {
  if (!value) return "–";
  return Number.isNaN(value.low) ? decimal(value.mean, 3) : `${decimal(value.mean, 3)} (${decimal(value.low, 3)} to ${decimal(value.high, 3)})`;
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

const STYLE = `:root{color-scheme:light dark;--ink:#22302f;--paper:#fffefb;--quiet:#57655f;--line:#d9d5c8;--curve:#0b6b5d}
@media(prefers-color-scheme:dark){:root{--ink:#dfe6e2;--paper:#192321;--quiet:#9aa9a3;--line:#33443f;--curve:#5fd0bb}}
body{font:16px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);max-width:60rem;margin:2rem auto;padding:0 1rem}
h1{font-size:1.6rem}h2{font-size:1.15rem;margin-top:2rem}table{border-collapse:collapse;margin:.6rem 0}
th,td{padding:.25rem 1rem .25rem 0;text-align:start;border-bottom:1px solid var(--line);font-weight:400;vertical-align:top}
thead th{color:var(--quiet)}svg{max-width:100%;height:auto}p,caption{color:var(--quiet);text-align:start}
.grid{stroke:var(--line)}.tick,.axis{fill:var(--quiet);font-size:11.5px}.point-name{fill:var(--ink);font-size:11.5px}
.line{fill:none;stroke:var(--curve);stroke-width:2.2}.error{stroke:var(--curve);stroke-width:1.4;opacity:.65}
.dot{fill:var(--curve)}.dot.by-score{fill:var(--paper);stroke:var(--curve);stroke-width:2}.error.by-score{stroke-dasharray:3 2}`;

/** Return the report: one HTML file without scripts that loads nothing; `figures` are SVG, in the order of the tradeoffs. */
export function report(audit: Audit, figures: string[]): string {
  const { plan, means } = audit;
  const safe = (value: string): string => value.replace(/[&<>"']/g, (sign) => `&#${sign.charCodeAt(0)};`);
  const row = (cells: string[], tag = "td"): string => `<tr>${cells.map((one) => `<${tag}>${safe(one)}</${tag}>`).join("")}</tr>`;
  const columns = COLUMNS.filter(({ quantity }) => means.some((one) => one.means[quantity]));
  const of = [...audit.outcomes.values()].filter((one) => !one.refused).length;
  const drawn = TRADEOFFS.filter(({ quantity }) => means.some((one) => one.means[quantity])).map(
    ({ quantity, title }, index) => `<h2>${safe(title)}</h2>${figures[index] ?? ""}<p>${safe(slopeOf(audit, quantity))}</p>`,
  );
  return `<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>${safe(plan.name)}</title><style>${STYLE}</style></head><body>
<h1>${safe(plan.name)}</h1>
<p>An audit by evenmesh: ${of} of ${plan.questions.length} questions. Means over questions with 95 % intervals by Student's distribution;
slope and mean height of the curves with 95 % BCa bootstrap intervals over questions, by the evaluator. Disparity is EE-D over its bound
${means.every((one) => one.exact) ? "from exact inclusion probabilities" : "over the sampled rankings"}, relevance EE-R over its bound;
utility beside the best is the expected utility of a question over the largest of any of its rankings.</p>
${drawn.join("\n")}
<h2>Every dial</h2>
<table><thead>${row(["dial", "questions", "rankings", ...(plan.answers ? ["answered"] : []), ...columns.map((one) => one.name)], "th")}</thead><tbody>
${means
  .map((one) =>
    row([dialName(one.alpha), String(one.questions), String(one.rankings), ...(plan.answers ? [String(one.answered)] : []), ...columns.map(({ quantity }) => inWords(one.means[quantity]))]),
  )
  .join("\n")}
</tbody></table>
<h2>What was asked</h2>
<table><tbody>${factsOf(plan)
    .map(([name, value]) => row([name, value]))
    .join("\n")}</tbody></table>
${audit.refused.length ? `<h2>Left out</h2><table><tbody>${audit.refused.map((one) => row([one.id, one.why])).join("\n")}</tbody></table>` : ""}
</body></html>
`;
}
