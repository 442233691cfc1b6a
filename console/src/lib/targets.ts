/** What the share of a provider is compared with. */

import type { ExposureReport } from "evenmesh/gen/evenmesh/orchestrator/v1/orchestrator_service_pb.js";

import { UNKNOWN } from "./providers";

export const EVEN = "target: every passage found is shown as often as any other";
export const MARKED = "target: the passages you marked as useful are shown as often as each other, before all others";
export const LABELLED = "target: the useful passages are shown as often as each other, before all others";

/** Return the share of each provider in the target exposure of labelled passages; empty without labels. */
export function labelledTargets(providers: ExposureReport["providers"]): Map<string, number> {
  const whole = providers.reduce((sum, one) => sum + (one.target ?? 0), 0);
  return new Map(whole > 0 ? providers.map((one) => [one.name || UNKNOWN, (one.target ?? 0) / whole]) : []);
}

/** Return the share of each provider where every passage found is shown as often as any other. */
export function evenTargets(providers: Iterable<string>): Map<string, number> {
  const all = [...providers];
  const counts = new Map<string, number>();
  for (const name of all) counts.set(name, (counts.get(name) ?? 0) + 1 / all.length);
  return counts;
}
