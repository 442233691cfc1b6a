/** One ask as the evaluator stored it, with the exposure that it measures and the passages that the collection still has. */

import type { Passage } from "evenmesh/gen/evenmesh/common/v1/common_pb.js";
import type { EvaluateExposureResponse, Observation } from "evenmesh/gen/evenmesh/evaluator/v1/evaluator_service_pb.js";

import { providerOf } from "./providers";
import { mesh } from "./session.svelte";

export interface Candidate {
  id: string;
  provider: string;
  /** Undefined where the collection does not have it any more. */
  passage: Passage | undefined;
  exposure: number;
  useful: boolean;
  cited: boolean;
}

export interface Observed {
  observation: Observation;
  /** Undefined where nothing could be shown, as in the vote of an ensemble. */
  exposure: EvaluateExposureResponse | undefined;
  /** Most exposed first. */
  candidates: Candidate[];
  providers: { name: string; share: number; target: number | undefined }[];
}

/** Read an observation and have its rankings measured; groups are numbered, as names may be longer than those of groups. */
export async function observed(observationId: string, signal: AbortSignal): Promise<Observed> {
  const { observation } = await mesh.evaluator.getObservation({ observationId }, { signal });
  if (!observation) throw new Error("the evaluator returned no observation");
  const { candidates, shown, labels } = observation;
  const names = [...new Set(candidates.map((one) => providerOf({ provider: one.provider })))];
  const places = new Map(names.map((name, index) => [name, index]));
  const useful = new Set(labels?.hasUseful ? labels.usefulPassageIds : []);
  const cited = new Set(observation.answers.flatMap((one) => one.cited));
  const [exposure, passages] = await Promise.all([
    shown?.depth && candidates.length
      ? mesh.evaluator.evaluateExposure(
          {
            rankings: shown,
            k: shown.depth,
            usefulness: candidates.map((one) => Number(useful.has(one.passageId))),
            groups: candidates.map((one) => String(places.get(providerOf({ provider: one.provider })))),
          },
          { signal },
        )
      : undefined,
    passagesOf(observation, signal),
  ]);
  const whole = exposure?.groups.reduce((sum, one) => sum + one.exposure, 0) || 1;
  const aim = useful.size ? exposure?.groups.reduce((sum, one) => sum + one.target, 0) : undefined;
  return {
    observation,
    exposure,
    candidates: candidates
      .map((one, index) => ({
        id: one.passageId,
        provider: providerOf({ provider: one.provider }),
        passage: passages.get(one.passageId),
        exposure: exposure?.exposure[index] ?? 0,
        useful: useful.has(one.passageId),
        cited: cited.has(index),
      }))
      .sort((a, b) => b.exposure - a.exposure),
    providers: (exposure?.groups ?? [])
      .map((one) => ({ name: names[Number(one.name)]!, share: one.exposure / whole, target: aim ? one.target / aim : undefined }))
      .sort((a, b) => b.share - a.share),
  };
}

async function passagesOf({ collection, candidates }: Observation, signal: AbortSignal): Promise<Map<string, Passage>> {
  const found = new Map<string, Passage>();
  if (!collection || !candidates.length) return found;
  try {
    const passageIds = candidates.map((one) => one.passageId);
    for await (const part of mesh.collections.getPassages({ collection, passageIds }, { signal })) {
      for (const passage of part.passages) found.set(passage.id, passage);
    }
  } catch {
    // The collection may be gone: ids are shown then.
  }
  return found;
}
