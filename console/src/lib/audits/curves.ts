/** Means over questions at every dial with their intervals, and the tradeoffs that the evaluator measures. */

import type { EvaluateTradeoffResponse } from "evenmesh/gen/evenmesh/evaluator/v1/evaluator_service_pb.js";

import { runningMeans, type Running } from "../means";
import { mesh } from "../session.svelte";
import type { Outcome } from "./outcome";
import type { Plan } from "./plan";

export const QUANTITIES = ["disparity", "relevance", "utility", "normalized"] as const;
export type Quantity = (typeof QUANTITIES)[number];

/** A dial over all questions so far; a quantity that no question has is left out. */
export interface Mean {
  /** Undefined without sampling. */
  alpha?: number;
  name: string;
  means: Partial<Record<Quantity, Running>>;
  /** Questions that have it. */
  questions: number;
  rankings: number;
  answered: number;
  exact: boolean;
}

export const dialName = (alpha: number | undefined): string => (alpha === undefined ? "no sampling" : `α = ${alpha}`);

/** Return the means of every dial, the most even one first and the ranking by score last. */
export function meansOf(plan: Plan, outcomes: Iterable<Outcome>): Mean[] {
  const all = [...outcomes].flatMap((one) => one.levels);
  return [...[...plan.alphas].sort((a, b) => a - b), undefined].map((alpha) => {
    const levels = all.filter((one) => one.alpha === alpha);
    const means: Mean["means"] = {};
    for (const quantity of QUANTITIES) {
      const values = levels.flatMap((one) => (one[quantity] === undefined ? [] : [{ at: 0, value: one[quantity] }]));
      const mean = runningMeans(values).at(-1);
      // All of them are within 0 and 1, and so is their mean.
      if (mean) means[quantity] = { ...mean, low: Math.max(0, mean.low), high: Math.min(1, mean.high) };
    }
    return {
      ...(alpha === undefined ? {} : { alpha }),
      name: dialName(alpha),
      means,
      questions: levels.length,
      rankings: levels.reduce((sum, one) => sum + one.rankings, 0),
      answered: levels.reduce((sum, one) => sum + one.answered, 0),
      exact: levels.every((one) => one.exact),
    };
  });
}

/** What stands against the disparity. */
export const TRADEOFFS = [
  { quantity: "normalized", name: "utility", title: "Disparity and utility" },
  { quantity: "relevance", name: "relevance", title: "Disparity and quality" },
] as const satisfies readonly { quantity: Quantity; name: string; title: string }[];
export type Tradeoff = (typeof TRADEOFFS)[number]["quantity"];

/** Have the evaluator measure slope and area of a tradeoff, with bootstrap intervals over questions; undefined without points. */
export async function tradeoff(plan: Plan, outcomes: Map<number, Outcome>, quantity: Tradeoff, signal: AbortSignal): Promise<EvaluateTradeoffResponse | undefined> {
  const points = [...outcomes].flatMap(([place, { levels }]) => {
    const baseline = levels.find((one) => one.alpha === undefined)?.[quantity];
    return levels
      .filter((one) => one.alpha !== undefined && one[quantity] !== undefined)
      .map((one) => ({ queryId: plan.questions[place]!.id, x: one.disparity, y: one[quantity]!, ...(baseline === undefined ? {} : { baseline }) }));
  });
  return points.length ? mesh.evaluator.evaluateTradeoff({ points }, { signal }) : undefined;
}
