/** An audit under way, stopped or at its end; and all audits of who is signed in. */

import { Code, MeshError } from "evenmesh";
import type { EvaluateTradeoffResponse } from "evenmesh/gen/evenmesh/evaluator/v1/evaluator_service_pb.js";
import type { AuditSample } from "evenmesh/gen/evenmesh/orchestrator/v1/orchestrator_service_pb.js";

import { session } from "../session.svelte";
import { finished, meansOf, tradeoff, TRADEOFFS, type Tradeoff } from "./curves";
import { audit, mayPass, OverBudget, type Outcome } from "./outcome";
import { callOf, numCalls, rankingsOf, systemName, systemsOf, type Plan, type System } from "./plan";
import * as store from "./store";

/** How long one call is tried again. Milliseconds. */
const RETRY_FOR_MS = 600_000;
const FIRST_PAUSE_MS = 500;
const LONGEST_PAUSE_MS = 20_000;
/** Questions one after another that the mesh may refuse before it is the audit that is refused. */
const REFUSED_AT_MOST = 3;

export class Audit {
  readonly id: string;
  readonly plan: Plan;
  readonly whose: string;
  budget = $state(0);
  status = $state<store.State>("ready");
  readonly systems: System[];
  /** What came of each call, by its place. */
  outcomes = $state.raw(new Map<number, Outcome>());
  /** Those of each system, by its place. */
  tradeoffs = $state.raw<Map<Tradeoff, EvaluateTradeoffResponse>[]>([]);
  /** Rankings of the call under way. */
  rankings = $state(0);
  /** Why it stopped or waits; what a question needs where the budget has no more. */
  error = $state.raw<unknown>(undefined);
  #abort = new AbortController();
  #measuring = false;

  constructor(kept: store.Kept) {
    [this.id, this.plan, this.whose, this.budget] = [kept.id, kept.plan, kept.whose, kept.budget];
    this.systems = systemsOf(this.plan);
    // What was under way when the page was left has stopped with it.
    this.status = kept.state === "running" || kept.state === "waiting" ? "stopped" : kept.state;
  }

  /** Whether results were read from the browser. */
  read = $state(false);
  readonly means = $derived.by(() => meansOf(this.plan, this.outcomes));
  readonly answers = $derived([...this.outcomes.values()].reduce((sum, one) => sum + one.answers, 0));
  /** Questions that all systems were asked. */
  readonly finished = $derived.by(() => finished(this.plan, this.outcomes));
  readonly refused = $derived.by(() =>
    [...this.outcomes].flatMap(([place, { refused }]) => {
      const { question, system } = callOf(this.plan, place);
      return refused ? [{ id: [question.id, systemName(this.plan, system)].filter(Boolean).join(", "), why: refused }] : [];
    }),
  );
  readonly running = $derived(this.status === "running" || this.status === "waiting");
  readonly numCalls = $derived.by(() => numCalls(this.plan));
  /** The place of the call that is next or under way; undefined at the end. */
  readonly next = $derived.by(() => {
    for (let place = 0; place < this.numCalls; place += 1) if (!this.outcomes.has(place)) return place;
    return undefined;
  });
  readonly rankingsOfNext = $derived.by(() => (this.next === undefined ? 0 : rankingsOf(this.plan, callOf(this.plan, this.next).question)));
  /** Time that the rest takes as the calls so far took. Milliseconds; undefined before the first. */
  readonly left = $derived.by(() => {
    const took = [...this.outcomes.values()].filter((one) => !one.refused).map((one) => one.took);
    return took.length ? ((this.numCalls - this.outcomes.size) * took.reduce((sum, one) => sum + one, 0)) / took.length : undefined;
  });

  async load(): Promise<void> {
    if (this.read) return;
    this.outcomes = await store.outcomes(this.id);
    this.read = true;
    void this.#measure();
  }

  /** Begin, or go on where it stopped. */
  async run(): Promise<void> {
    if (this.running) return;
    this.#abort = new AbortController();
    const { signal } = this.#abort;
    [this.status, this.error] = ["running", undefined];
    try {
      await this.load();
      await this.#keep();
      await this.#alone(() => this.#questions(signal));
      this.status = "done";
    } catch (error) {
      this.status = error instanceof OverBudget ? "budget" : "stopped";
      this.error = signal.aborted ? undefined : error;
    } finally {
      this.rankings = 0;
      await this.#keep().catch((error: unknown) => (this.error ??= error));
      void this.#measure();
    }
  }

  stop(): void {
    this.#abort.abort();
  }

  async remove(): Promise<void> {
    this.stop();
    await store.remove(this.id);
    audits.all = audits.all.filter((one) => one !== this);
  }

  /** Return the records of the rankings that a model answered. */
  records(model: string): Promise<string[]> {
    return store.records(this.id, (place) => callOf(this.plan, place).system.model === model);
  }

  /** Hold a lock, so that no other tab asks the same. */
  async #alone(work: () => Promise<void>): Promise<void> {
    if (!("locks" in navigator)) return work(); // there are none without TLS, but on this machine
    await navigator.locks.request(`evenmesh-audit-${this.id}`, { ifAvailable: true }, async (lock) => {
      if (!lock) throw new Error("It is under way in another tab.");
      this.outcomes = await store.outcomes(this.id);
      await work();
    });
  }

  async #questions(signal: AbortSignal): Promise<void> {
    let refused = new Set<number>();
    while (this.next !== undefined) {
      const place = this.next;
      const before = this.finished;
      let found: { outcome: Outcome; records: string };
      try {
        found = await this.#call(place, signal);
        refused = new Set();
      } catch (error) {
        const about = error instanceof MeshError && [Code.InvalidArgument, Code.OutOfRange, Code.ResourceExhausted].includes(error.code);
        // What the first question meets, or several one after another, is not about this one.
        const taken = [...this.outcomes.values()].some((one) => !one.refused);
        if (signal.aborted || !about || !taken || mayPass(error) || refused.add(callOf(this.plan, place).at).size >= REFUSED_AT_MOST) throw error;
        found = { outcome: { levels: [], answers: 0, took: 0, refused: error.rawMessage }, records: "" };
      }
      await store.add(this.id, place, found.outcome, found.records);
      this.outcomes = new Map([...this.outcomes, [place, found.outcome] as const].sort(([a], [b]) => a - b));
      // As often as it is worth it: the bootstrap costs more the more there is.
      if (this.finished > before && Number.isInteger(Math.log2(this.finished))) void this.#measure();
    }
  }

  async #call(place: number, signal: AbortSignal): Promise<{ outcome: Outcome; records: string }> {
    let pause = FIRST_PAUSE_MS;
    let givesUpAt = 0;
    /** Answers of tries that failed: they were written all the same. */
    let lost = 0;
    for (;;) {
      this.rankings = 0;
      const answered = new Set<string>();
      const count = (sample: AuditSample): void => {
        this.rankings += 1;
        if (sample.answered) answered.add(JSON.stringify(sample.passageIds));
      };
      try {
        const found = await audit(this.plan, callOf(this.plan, place), this.budget - this.answers - lost, count, signal);
        [this.status, this.error] = ["running", undefined];
        found.outcome.answers += lost;
        return found;
      } catch (error) {
        lost += answered.size;
        givesUpAt ||= Date.now() + RETRY_FOR_MS;
        if (signal.aborted || !mayPass(error) || Date.now() >= givesUpAt) throw error;
        [this.status, this.error] = ["waiting", error];
        await sleep(Math.max(pause, (error instanceof MeshError && error.retryAfterMs) || 0), signal);
        pause = Math.min(2 * pause, LONGEST_PAUSE_MS);
        this.status = "running";
      }
    }
  }

  async #measure(): Promise<void> {
    if (this.#measuring || !this.outcomes.size) return;
    this.#measuring = true;
    const found = this.systems.map(() => new Map<Tradeoff, EvaluateTradeoffResponse>());
    try {
      for (const [system, of] of found.entries()) {
        for (const { quantity } of TRADEOFFS) {
          const one = await tradeoff(this.plan, this.outcomes, system, quantity, new AbortController().signal);
          if (one) of.set(quantity, one);
        }
      }
      this.tradeoffs = found;
    } catch {
      // The means stand without them; they are asked for again.
    } finally {
      this.#measuring = false;
    }
  }

  #keep(): Promise<void> {
    return store.keep({ id: this.id, whose: this.whose, plan: this.plan, budget: this.budget, state: this.status });
  }
}

function sleep(ms: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, ms);
    signal.addEventListener("abort", () => (clearTimeout(timer), reject(signal.reason)), { once: true });
  });
}

class Audits {
  all = $state.raw<Audit[]>([]);
  #whose = "";

  /** Read the audits of who is signed in. Those of the page go on while other pages are shown. */
  async read(): Promise<void> {
    const whose = this.#who();
    if (whose === this.#whose) return;
    this.#whose = whose;
    const kept = await store.list(whose);
    if (whose !== this.#whose) return;
    this.all = kept.map((one) => new Audit(one)).sort((a, b) => b.plan.createdAt - a.plan.createdAt);
  }

  /** Stop and forget the audits of who is no longer signed in: none goes on with the key of somebody else. */
  leave(): void {
    if (this.#whose === this.#who()) return;
    for (const one of this.all) one.stop();
    [this.#whose, this.all] = ["", []];
  }

  /** Make an audit and begin. */
  async begin(plan: Plan, budget: number): Promise<Audit> {
    const made = new Audit({ id: crypto.randomUUID?.() ?? `${plan.createdAt}-${Math.random()}`, whose: this.#who(), plan, budget, state: "ready" });
    made.read = true;
    this.all = [made, ...this.all];
    void made.run();
    return made;
  }

  #who(): string {
    return JSON.stringify([session.identity?.tenant ?? "", session.identity?.name ?? ""]);
  }
}

export const audits = new Audits();
