/** A look before an audit begins: labels that name nothing, and what the first questions show that all will cost. */

import { Stage } from "evenmesh/gen/evenmesh/common/v1/common_pb.js";

import { mesh } from "../session.svelte";
import { allRankings, callOf, numCalls, requestOf, systemsOf, type Call, type Plan } from "./plan";

/** Questions that are looked at. */
const LOOKED_AT = 3;
const MOST_IDS = 10_000;

export interface Look {
  rankings: number;
  /** Most answers: as many as there are rankings. */
  most: number;
  /** Answers that it will take by what was looked at. */
  expected: number;
  lookedAt: number;
  /** Longest time by one answer of each model to the first question. Milliseconds; undefined where nothing is answered. */
  time?: number;
  /** What is likely a mistake; it can begin all the same. */
  notes: string[];
}

/** Look at a plan: draw the rankings of the first questions without answering them, and time one answer. */
export async function look(plan: Plan, signal: AbortSignal): Promise<Look> {
  const systems = systemsOf(plan);
  const looked = Math.min(LOOKED_AT, plan.questions.length);
  const notes = await notesOf(plan, signal);
  const drawn: number[] = [];
  for (let place = 0; place < looked * systems.length; place += 1) drawn.push(await contexts(plan, callOf(plan, place), signal));
  const rankings = allRankings(plan);
  if (!plan.answers) return { rankings, most: 0, expected: 0, lookedAt: looked, notes };
  const mean = drawn.reduce((sum, one) => sum + one, 0) / drawn.length;
  // Oracles are drawn only where something is answered; each may be another context.
  const oracle = systems.length * plan.questions.filter((one) => one.useful?.length).length * plan.samples;
  const expected = Math.min(rankings, Math.round(mean * numCalls(plan)) + oracle);
  let ms = 0;
  for (const model of plan.models) ms += (await answerMs(plan, model, signal)) / plan.models.length;
  return { rankings, most: rankings, expected, lookedAt: looked, time: expected * ms, notes };
}

/** Return how many different contexts the rankings of a call have. */
async function contexts(plan: Plan, call: Call, signal: AbortSignal): Promise<number> {
  const found = new Set<string>();
  for await (const { event } of mesh.orchestrator.audit(requestOf({ ...plan, answers: false }, call, true), { signal })) {
    if (event.case === "sample") found.add(event.value.passageIds.join("\n"));
  }
  return found.size;
}

/** Return the time that one answer of a model takes by itself; in an audit several are written together. */
async function answerMs(plan: Plan, model: string, signal: AbortSignal): Promise<number> {
  const { collection, retrievers: [retriever = ""], reranker, k, depth } = plan;
  const options = { source: { case: "collection", value: collection } as const, retriever, reranker, model, k, depth, skipObservation: true };
  for await (const event of mesh.ask(plan.questions[0]!.question, options, { signal })) {
    if (event.case === "done") return event.value.stageTimes.filter((one) => one.stage === Stage.GENERATE).reduce((sum, one) => sum + one.durationMs, 0);
  }
  return 0;
}

async function notesOf(plan: Plan, signal: AbortSignal): Promise<string[]> {
  const notes: string[] = [];
  const labelled = plan.questions.filter((one) => one.useful !== undefined);
  if (!labelled.length) notes.push("Without labels there is no relevance: disparity alone is measured, and utility.");
  else if (labelled.length < plan.questions.length) notes.push(`${plan.questions.length - labelled.length} questions have no labels.`);
  const few = labelled.filter((one) => one.useful!.length < 2).length;
  if (few) notes.push(`${few} labelled questions have fewer than two useful passages; there is nothing to be fair between.`);
  const named = [...new Set(labelled.flatMap((one) => one.useful!))];
  const there = new Set<string>();
  for (let from = 0; from < named.length; from += MOST_IDS) {
    const request = { collection: plan.collection, passageIds: named.slice(from, from + MOST_IDS) };
    for await (const part of mesh.collections.getPassages(request, { signal })) for (const one of part.passages) there.add(one.id);
  }
  const lost = named.filter((one) => !there.has(one));
  if (lost.length) notes.push(`The labels name ${lost.length} passages that the collection does not have, such as “${lost[0]}”.`);
  return notes;
}
