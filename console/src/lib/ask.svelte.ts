/** One ask, and one preview of the dial, as they stream in. */

import type { AskOptions } from "evenmesh";
import type { Degradation, Passage } from "evenmesh/gen/evenmesh/common/v1/common_pb.js";
import {
  AuditPolicy,
  type AnswerEvent,
  type AnswerFailed,
  type Done,
  type ExposureReport,
  type Ranked,
} from "evenmesh/gen/evenmesh/orchestrator/v1/orchestrator_service_pb.js";

import { providerOf, UNKNOWN } from "./providers";
import { mesh } from "./session.svelte";
import { evenTargets, labelledTargets } from "./targets";
import * as traces from "./traces";

/** Stops of the dial: α of each, then no sampling. */
export const ALPHAS = [0, 0.5, 1, 1.5, 2, 3, 4, 5, 6, 8, 12, 16, 24, 48];
export const STOPS = ALPHAS.length + 1;
export const stopLabel = (stop: number): string => (stop < ALPHAS.length ? String(ALPHAS[stop]) : "off");

/** How a question is asked. */
export interface Settings {
  question: string;
  collection: string;
  retriever: string;
  reranker: string;
  model: string;
  k: number;
  depth: number;
  samples: number;
  stop: number;
  useful: string[];
}

/** Return the options that settings stand for. */
export function optionsOf(settings: Settings): AskOptions {
  const { collection, retriever, reranker, model, k, depth, samples, stop, useful } = settings;
  const alpha = ALPHAS[stop];
  return {
    source: { case: "collection", value: collection },
    retriever,
    reranker,
    model,
    k,
    depth,
    ...(alpha === undefined ? {} : { sampling: { alpha, numRankings: samples }, numAnswers: 1 }),
    ...(useful.length ? { labels: { usefulPassageIds: useful, hasUseful: true } } : {}),
  };
}

/** An ask under way or at its end. */
export class AskRun {
  readonly settings: Settings;
  text = $state("");
  passages = $state.raw<Passage[]>([]);
  retriever = $state("");
  ranked = $state.raw<Ranked | undefined>(undefined);
  answer = $state.raw<AnswerEvent | undefined>(undefined);
  failed = $state.raw<AnswerFailed | undefined>(undefined);
  report = $state.raw<ExposureReport | undefined>(undefined);
  done = $state.raw<Done | undefined>(undefined);
  degraded = $state.raw<Degradation[]>([]);
  error = $state.raw<unknown>(undefined);
  running = $state(true);
  stopped = $state(false);
  readonly trace = traces.begin();
  #abort = new AbortController();

  constructor(settings: Settings) {
    this.settings = settings;
    void this.#run();
  }

  stop(): void {
    this.stopped = true;
    this.#abort.abort();
  }

  async #run(): Promise<void> {
    const { question } = this.settings;
    const options = optionsOf(this.settings);
    const headers: HeadersInit = this.trace ? { traceparent: this.trace.header } : {};
    try {
      for await (const event of mesh.ask(question, options, { signal: this.#abort.signal, headers })) {
        if (event.case === "retrieved") {
          this.passages = event.value.passages;
          this.retriever = event.value.retriever;
        } else if (event.case === "ranked") this.ranked = event.value;
        else if (event.case === "delta") this.text += event.value.text;
        else if (event.case === "answer") this.answer ??= event.value;
        else if (event.case === "failed") this.failed ??= event.value;
        else if (event.case === "report") this.report = event.value;
        else if (event.case === "degraded") this.degraded = [...this.degraded, event.value];
        else if (event.case === "done") this.done = event.value;
      }
    } catch (error) {
      if (!this.stopped) this.error = error;
    } finally {
      this.running = false;
    }
  }
}

/** What one stop of the dial shows, before anything is generated. */
export interface Level {
  rankings: string[][];
  exposure: Map<string, number>;
  /** Exact expected exposure of each passage of the pool. */
  exact: number[];
  shares: Map<string, number>;
  targets: Map<string, number>;
  disparity: number;
  exactDisparity: number | undefined;
  exactRelevance: number | undefined;
}

/** Sampled rankings at every stop of the dial, of one question. One call draws all of them. */
export class Preview {
  readonly settings: Settings;
  levels = $state.raw<Level[]>([]);
  pool = $state.raw<string[]>([]);
  providers = $state.raw<Map<string, string>>(new Map());
  passages = $state.raw<Map<string, Passage>>(new Map());
  error = $state.raw<unknown>(undefined);
  running = $state(true);
  #abort = new AbortController();

  constructor(settings: Settings) {
    this.settings = settings;
    void this.#run();
  }

  stop(): void {
    this.#abort.abort();
  }

  async #run(): Promise<void> {
    const { settings } = this;
    const labels = { usefulPassageIds: settings.useful, hasUseful: true };
    const ask = {
      ...optionsOf({ ...settings, stop: STOPS }),
      question: settings.question,
      sampling: { numRankings: settings.samples },
      numAnswers: 0,
      skipObservation: true,
      labels,
    };
    const signal = this.#abort.signal;
    const rankings = Array.from({ length: STOPS }, (): string[][] => []);
    const levels: Level[] = [];
    const stopOf = (policy: AuditPolicy, alpha: number | undefined): number =>
      policy === AuditPolicy.DETERMINISTIC ? STOPS - 1 : ALPHAS.indexOf(alpha ?? -1);
    try {
      for await (const { event } of mesh.orchestrator.audit({ ask, alphas: ALPHAS, numOracle: 0 }, { signal })) {
        if (event.case === "settled") {
          this.pool = event.value.passageIds;
          this.providers = new Map(
            event.value.passageIds.map((id, index) => [id, providerOf({ provider: event.value.providers[index] ?? "" })]),
          );
          void this.#read(event.value.passageIds, signal);
        } else if (event.case === "sample") {
          rankings[stopOf(event.value.policy, event.value.alpha)]?.push(event.value.passageIds);
        } else if (event.case === "report" && event.value.audit) {
          const { audit, exposure, providers, eeDNorm } = event.value;
          const stop = stopOf(audit.policy, audit.alpha);
          const deterministic = audit.policy === AuditPolicy.DETERMINISTIC;
          levels[stop] = {
            rankings: rankings[stop] ?? [],
            exposure: new Map(this.pool.map((id, index) => [id, exposure[index] ?? 0])),
            exact: audit.exactExposure.length ? audit.exactExposure : exposure,
            shares: new Map(providers.map((one) => [one.name || UNKNOWN, one.share])),
            targets: settings.useful.length ? labelledTargets(providers) : evenTargets(this.providers.values()),
            disparity: eeDNorm,
            exactDisparity: deterministic ? eeDNorm : audit.exactEeDNorm,
            exactRelevance: !settings.useful.length ? undefined : deterministic ? event.value.eeRNorm : audit.exactEeRNorm,
          };
        }
      }
      this.levels = levels;
    } catch (error) {
      if (!signal.aborted) this.error = error;
    } finally {
      this.running = false;
    }
  }

  /** Read the texts of the passages, which an audit leaves out. */
  async #read(ids: string[], signal: AbortSignal): Promise<void> {
    if (!ids.length) return;
    try {
      const found = new Map<string, Passage>();
      const request = { collection: this.settings.collection, passageIds: ids };
      for await (const part of mesh.collections.getPassages(request, { signal })) {
        for (const passage of part.passages) found.set(passage.id, passage);
      }
      this.passages = found;
    } catch {
      // Their ids are shown instead.
    }
  }
}
