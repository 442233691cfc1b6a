/** What came of one question: exposure and utility at every dial, and the record of every ranking. */

import { Code, ConnectError } from "@connectrpc/connect";
import { MeshError } from "evenmesh";
import type { ItemError } from "evenmesh/gen/evenmesh/common/v1/common_pb.js";
import { AuditPolicy, type AuditSample, type ExposureReport } from "evenmesh/gen/evenmesh/orchestrator/v1/orchestrator_service_pb.js";

import { mesh } from "../session.svelte";
import { requestOf, TIMEOUT_MS, type Call, type Plan } from "./plan";
import type { Question } from "./questions";

/** A question of a system at one dial; `alpha` is undefined without sampling. Values that are not defined are left out. */
export interface Level {
  alpha?: number;
  /** EE-D over its bound: exact where the mesh knows inclusion probabilities, otherwise of the samples. */
  disparity: number;
  exact: boolean;
  /** EE-R over its bound, likewise. */
  relevance?: number;
  utility?: number;
  /** Expected utility over the largest of any ranking of the call. */
  normalized?: number;
  rankings: number;
  answered: number;
}

export interface Outcome {
  levels: Level[];
  /** Largest utility of any ranking, the oracle's too. */
  best?: number;
  /** Different contexts that were answered, and those of earlier tries. */
  answers: number;
  /** Why the mesh does not take the question; it is left out. */
  refused?: string;
  /** Time that it took. Milliseconds. */
  took: number;
}

/** Raised where a question needs more answers than are left of the budget. */
export class OverBudget extends Error {
  constructor(readonly needed: number) {
    super(`The next question needs ${needed} answers.`);
  }
}

/** Raised where a ranking has no answer for a reason that may pass. */
export class Unanswered extends Error {}

const MAY_PASS = ["Unavailable", "DeadlineExceeded", "ResourceExhausted", "Aborted", "Canceled", "Unknown", "Internal"] as const;
const TOO_MUCH = new Set(["OVER_CAPACITY", "REQUEST_TOO_LARGE", "OBSERVATION_TOO_LARGE"]);

/** Whether another try may not meet an error, as `evenmesh audit` decides it. */
export function mayPass(error: unknown): boolean {
  if (error instanceof Unanswered) return true;
  return error instanceof MeshError && MAY_PASS.some((name) => Code[name] === error.code) && !TOO_MUCH.has(error.reason);
}

/** The same of a single ranking, whose error has the name of its code. */
function itemMayPass({ code, reason }: ItemError): boolean {
  const plain = code.replaceAll("_", "").toLowerCase().replace("cancelled", "canceled");
  return MAY_PASS.some((name) => name.toLowerCase() === plain) && !TOO_MUCH.has(reason);
}

/**
 * Make one call: audit a question as a system is asked it.
 *
 * @param left answers that the budget still has; a question that needs more is not answered.
 * @param onRanking is called with every ranking that comes.
 * @throws OverBudget, Unanswered, and MeshError if the audit fails.
 */
export async function audit(
  plan: Plan,
  call: Call,
  left: number,
  onRanking: (sample: AuditSample) => void,
  signal: AbortSignal,
): Promise<{ outcome: Outcome; records: string }> {
  const began = performance.now();
  const ended = new AbortController();
  const { question } = call;
  const request = requestOf(plan, call);
  const levels: Level[] = [];
  const lines: string[] = [];
  let [answers, done] = [0, false];
  let best: number | undefined;
  let pool: string[] = [];
  let system = "";
  const withPool = new Set<string>();
  try {
    for await (const { event } of mesh.orchestrator.audit(request, { signal: AbortSignal.any([signal, ended.signal]), timeoutMs: TIMEOUT_MS })) {
      if (event.case === "settled") {
        answers = plan.answers ? event.value.numContexts : 0;
        if (answers > left) throw new OverBudget(answers);
        const { retriever, reranker } = event.value;
        system = reranker === "none" ? retriever : `${retriever}+${reranker}`;
        pool = event.value.passageIds;
      } else if (event.case === "sample") {
        onRanking(event.value);
        if (event.value.error && itemMayPass(event.value.error)) throw new Unanswered(event.value.error.message);
        if (event.value.utility !== undefined) best = Math.max(best ?? 0, event.value.utility);
        if (event.value.passageIds.length) lines.push(recordOf(event.value, question, system, pool, withPool, !lines.length));
      } else if (event.case === "report") {
        const level = levelOf(event.value);
        if (level) levels.push(level);
      } else if (event.case === "done") done = true;
    }
  } finally {
    ended.abort();
  }
  if (!done) throw new MeshError(new ConnectError("the audit ended early", Code.Unavailable));
  return { outcome: { levels, ...defined({ best }), answers, took: performance.now() - began }, records: lines.map((line) => `${line}\n`).join("") };
}

function levelOf(report: ExposureReport): Level | undefined {
  const of = report.audit;
  if (!of || of.policy === AuditPolicy.ORACLE) return undefined;
  const sampled = of.policy !== AuditPolicy.DETERMINISTIC;
  const exact = !sampled || of.exactEeDNorm !== undefined;
  const relevance = sampled && of.exactEeDNorm !== undefined ? of.exactEeRNorm : report.eeRNorm;
  return {
    ...(sampled ? { alpha: of.alpha ?? 0 } : {}),
    disparity: of.exactEeDNorm ?? report.eeDNorm,
    exact,
    ...defined({ relevance, utility: report.expectedUtility, normalized: of.normalizedExpectedUtility }),
    rankings: of.numRankings,
    answered: of.numAnswered,
  };
}

const defined = <T extends object>(values: T): Partial<T> =>
  Object.fromEntries(Object.entries(values).filter(([, value]) => value !== undefined && !Number.isNaN(value))) as Partial<T>;

/** Return a ranking as a record that `evenmesh eval` reads: the first has the references, the first of each system its pool. */
function recordOf(sample: AuditSample, question: Question, system: string, pool: string[], withPool: Set<string>, first: boolean): string {
  const name = sample.policy === AuditPolicy.ORACLE ? `${system}/oracle` : system;
  const sampled = sample.policy !== AuditPolicy.ORACLE && sample.policy !== AuditPolicy.DETERMINISTIC;
  const record = {
    query_id: question.id,
    ranking: sample.passageIds,
    system: name,
    ...(sampled ? { alpha: sample.alpha } : {}),
    sample: sample.sample,
    ...(sample.answered ? { answer: sample.answer } : {}),
    ...(first && question.references.length ? { references: question.references } : {}),
    ...(sample.utility === undefined ? {} : { utility: sample.utility }),
    ...(sample.logProbability === undefined ? {} : { log_probability: sample.logProbability }),
    ...(withPool.has(name) || !pool.length ? {} : { pool }),
  };
  withPool.add(name);
  return JSON.stringify(record);
}
