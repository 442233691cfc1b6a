/** Means over questions at every dial with their intervals, and the tradeoffs that the evaluator measures. */

import type { EvaluateTradeoffResponse } from "evenmesh/gen/evenmesh/evaluator/v1/evaluator_service_pb.js";

import { runningMeans, type Running } from "../means";
import { mesh } from "../session.svelte";
import type { Level, Outcome } from "./outcome";
import { systemsOf, type Plan } from "./plan";

export const QUANTITIES = ["disparity", "relevance", "utility", "normalized"] as const;
export type Quantity = (typeof QUANTITIES)[number];

/** A dial of a system over all questions so far; a quantity that no question has is left out. */
export interface Mean {
  /** Place of the system. */
  system: number;
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

/** What came of a question for a system. */
export interface Measured {
  /** Place of the question. */
  at: number;
  system: number;
  levels: Level[];
}

/**
 * Return what can be compared: the questions that every system was asked, so that all curves are over the same ones.
 *
 * Utilities of a question are over the largest of any ranking, whichever retriever it is of; models are not compared by
 * it (as in `evenmesh audit`).
 */
export function comparable(plan: Plan, outcomes: Map<number, Outcome>): Measured[] {
  const systems = systemsOf(plan);
  return plan.questions.flatMap((_, at) => {
    const found = systems.map((_, system) => outcomes.get(at * systems.length + system));
    if (!found.every((one): one is Outcome => one !== undefined && one.refused === undefined)) return [];
    return found.map(({ levels }, system): Measured => {
      if (plan.retrievers.length < 2) return { at, system, levels };
      const { model } = systems[system]!;
      const best = Math.max(0, ...found.flatMap((one, other) => (systems[other]!.model === model ? [one.best ?? 0] : [])));
      const over = ({ normalized, ...level }: Level): Level =>
        normalized === undefined || level.utility === undefined ? level : { ...level, normalized: best ? level.utility / best : normalized };
      return { at, system, levels: levels.map(over) };
    });
  });
}

/** Return how many questions every system was asked. */
export function finished(plan: Plan, outcomes: Map<number, Outcome>): number {
  const systems = systemsOf(plan).length;
  const done = new Array<number>(plan.questions.length).fill(0);
  for (const place of outcomes.keys()) done[Math.floor(place / systems)]! += 1;
  return done.filter((of) => of === systems).length;
}

/** Return the means of every dial, system by system, the most even dial first and the ranking by score last. */
export function meansOf(plan: Plan, outcomes: Map<number, Outcome>): Mean[] {
  const measured = comparable(plan, outcomes);
  return systemsOf(plan).flatMap((_, system) => ofSystem(plan, system, measured.flatMap((one) => (one.system === system ? one.levels : []))));
}

function ofSystem(plan: Plan, system: number, all: Level[]): Mean[] {
  return [...[...plan.alphas].sort((a, b) => a - b), undefined].map((alpha) => {
    const levels = all.filter((one) => one.alpha === alpha);
    const means: Mean["means"] = {};
    for (const quantity of QUANTITIES) {
      const values = levels.flatMap((one) => (one[quantity] === undefined ? [] : [{ at: 0, value: one[quantity] }]));
      const mean = runningMeans(values).at(-1);
      if (mean) means[quantity] = mean;
    }
    return {
      system,
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

/** Have the evaluator measure slope and area of a tradeoff of a system, with bootstrap intervals over questions; undefined without points. */
export async function tradeoff(plan: Plan, outcomes: Map<number, Outcome>, system: number, quantity: Tradeoff, signal: AbortSignal): Promise<EvaluateTradeoffResponse | undefined> {
  const points = comparable(plan, outcomes).flatMap(({ at, system: of, levels }) => {
    if (of !== system) return [];
    const baseline = levels.find((one) => one.alpha === undefined)?.[quantity];
    return levels
      .filter((one) => one.alpha !== undefined && one[quantity] !== undefined)
      .map((one) => ({ queryId: plan.questions[at]!.id, x: one.disparity, y: one[quantity]!, ...(baseline === undefined ? {} : { baseline }) }));
  });
  return points.length ? mesh.evaluator.evaluateTradeoff({ points }, { signal }) : undefined;
}
