/** What an audit asks: its questions and dials, what it costs at most, and the call of each question. */

import type { MessageInitShape } from "@bufbuild/protobuf";
import { UtilityMetric } from "evenmesh/gen/evenmesh/evaluator/v1/evaluator_service_pb.js";
import type { AuditRequestSchema } from "evenmesh/gen/evenmesh/orchestrator/v1/orchestrator_service_pb.js";

import type { Question } from "./questions";

export { UtilityMetric };

export const MOST_DIALS = 16;
/** Pairs of a retriever and a model. */
export const MOST_SYSTEMS = 8;
export const MOST_SAMPLES = 1000;
export const MOST_RANKINGS = 500_000;
/** Longest time for one question. Milliseconds. */
export const TIMEOUT_MS = 600_000;

export interface Plan {
  name: string;
  collection: string;
  /** Each question is asked with each of them; an empty name is the default. */
  retrievers: string[];
  reranker: string;
  /** Likewise; one where nothing is answered. */
  models: string[];
  k: number;
  depth: number;
  alphas: number[];
  samples: number;
  /** Whether the rankings are answered; otherwise exposure alone is measured. */
  answers: boolean;
  metric: UtilityMetric;
  questions: Question[];
  createdAt: number;
}

/** A retriever and a model, whose rankings have curves of their own. */
export interface System {
  retriever: string;
  model: string;
}

/** Return every pair of a retriever and a model, those of a model together. */
export const systemsOf = (plan: Plan): System[] => plan.models.flatMap((model) => plan.retrievers.map((retriever) => ({ retriever, model })));

/** Return by what a system differs from the others; empty where it is alone. */
export function systemName(plan: Plan, { retriever, model }: System): string {
  return [
    ...(plan.retrievers.length > 1 ? [retriever || "default retriever"] : []),
    ...(plan.models.length > 1 ? [model || "default model"] : []),
  ].join(" · ");
}

/** Return what `systemName` names. */
export const systemHead = (plan: Plan): string => [...(plan.retrievers.length > 1 ? ["retriever"] : []), ...(plan.models.length > 1 ? ["model"] : [])].join(" · ");

/** One call of an audit: a question as a system is asked it. */
export interface Call {
  question: Question;
  /** Place of the question among the questions. */
  at: number;
  system: System;
}

/** Return how many calls there are. */
export const numCalls = (plan: Plan): number => plan.questions.length * plan.retrievers.length * plan.models.length;

/** Return a call by its place: all systems are asked a question before the next one. */
export function callOf(plan: Plan, place: number): Call {
  const systems = systemsOf(plan);
  const at = Math.floor(place / systems.length);
  return { question: plan.questions[at]!, at, system: systems[place % systems.length]! };
}

/** Whether some passage is known to be useful to a question, so that an oracle can be drawn. */
const hasUseful = (question: Question): boolean => (question.useful?.length ?? 0) > 0;

/** Return how many rankings a call has at most: the one by score, the dials', and the oracle's. */
export function rankingsOf(plan: Plan, question: Question): number {
  const oracle = plan.answers && hasUseful(question) ? plan.samples : 0;
  return 1 + plan.alphas.length * plan.samples + oracle;
}

export const allRankings = (plan: Plan): number => systemsOf(plan).length * plan.questions.reduce((sum, one) => sum + rankingsOf(plan, one), 0);

/** Return the run that the evaluator files the observations of a system under. */
export function runOf(plan: Plan, system: System): string {
  const plain = (words: string, most: number): string => words.replace(/[^A-Za-z0-9]+/g, "-").slice(0, most);
  const name = systemName(plan, system);
  const place = systemsOf(plan).findIndex((one) => one.retriever === system.retriever && one.model === system.model);
  // The place separates names that differ by signs alone.
  return [plain(plan.name, 40), ...(name ? [plain(name, 60), String(place + 1)] : []), plan.createdAt.toString(36)].join("-");
}

/** Return the request of a call; `skipObservation` keeps it from the evaluator. */
export function requestOf(plan: Plan, { question, system }: Pick<Call, "question" | "system">, skipObservation = false): MessageInitShape<typeof AuditRequestSchema> {
  return {
    ask: {
      question: question.question,
      ...(question.search ? { search: question.search } : {}),
      source: { case: "collection", value: plan.collection },
      retriever: system.retriever,
      reranker: plan.reranker,
      model: system.model,
      k: plan.k,
      depth: plan.depth,
      sampling: { numRankings: plan.samples },
      ...(plan.answers ? {} : { numAnswers: 0 }),
      labels: {
        usefulPassageIds: question.useful ?? [],
        hasUseful: true,
        references: plan.answers ? question.references : [],
        metric: plan.metric,
      },
      queryId: question.id,
      runId: runOf(plan, system),
      skipObservation,
    },
    alphas: plan.alphas,
    ...(plan.answers && hasUseful(question) ? {} : { numOracle: 0 }),
  };
}

/** Return what is wrong with a plan, in words; empty if it can be run. */
export function problemsOf(plan: Plan): string[] {
  const found: string[] = [];
  const whole = (value: number, most: number): boolean => Number.isInteger(value) && value >= 1 && value <= most;
  if (!plan.questions.length) found.push("There is no question.");
  if (!plan.alphas.length) found.push("There is no dial.");
  if (plan.alphas.length > MOST_DIALS) found.push(`There are more than ${MOST_DIALS} dials.`);
  for (const alpha of plan.alphas) if (!(alpha >= 0 && alpha <= 100)) found.push("A dial is a number from 0 to 100.");
  if (new Set(plan.alphas).size < plan.alphas.length) found.push("A dial is there twice.");
  if (systemsOf(plan).length > MOST_SYSTEMS) found.push(`There are more than ${MOST_SYSTEMS} pairs of a retriever and a model.`);
  if (!whole(plan.samples, MOST_SAMPLES)) found.push(`Rankings of each dial: 1 to ${MOST_SAMPLES}.`);
  if (!whole(plan.k, 100) || !whole(plan.depth, 1000) || plan.k > plan.depth) found.push("Passages shown: 1 to 100, and no more than are found (1 to 1,000).");
  if (!plan.name.trim() || plan.name.length > 80) found.push("It needs a name of 1 to 80 characters.");
  const lacking = plan.answers ? plan.questions.filter((one) => !one.references.length).length : 0;
  if (lacking) found.push(`${lacking} ${lacking === 1 ? "question has" : "questions have"} no right answer to score against. Add them after a tab, or measure exposure alone.`);
  if (!found.length && allRankings(plan) > MOST_RANKINGS) found.push(`${allRankings(plan).toLocaleString("en")} rankings are too many for a browser; the command “evenmesh audit” takes them.`);
  return [...new Set(found)];
}
