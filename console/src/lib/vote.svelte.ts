/** An ensemble that answers one question: its members as they finish, and the vote after each. */

import type { Degradation, Passage } from "evenmesh/gen/evenmesh/common/v1/common_pb.js";
import type {
  AnswerEvent,
  AnswerFailed,
  Done,
  ExposureReport,
  ListEnsemblesResponse,
  Ranked,
  VoteEvent,
} from "evenmesh/gen/evenmesh/orchestrator/v1/orchestrator_service_pb.js";

import { mesh } from "./session.svelte";

/** Fewest and most members of an ensemble. */
export const FEWEST = 2;
export const MOST = 20;

/** How an ensemble is asked: by the name of one that is set up, or by its members. */
export interface VoteSettings {
  question: string;
  name: string;
  members: string[];
  reranker: string;
  model: string;
}

/** A member as it works. */
export interface Member {
  name: string;
  ranked?: Ranked;
  answer?: AnswerEvent;
  failed?: AnswerFailed;
  /** Which answer it was, from 1, in the order in which they came; unset without one. */
  place?: number;
}

/** An ensemble under way or at its end. */
export class VoteRun {
  readonly settings: VoteSettings;
  members = $state.raw<Member[]>([]);
  /** The vote after each answer, and no final one. */
  votes = $state.raw<VoteEvent[]>([]);
  final = $state.raw<VoteEvent | undefined>(undefined);
  passages = $state.raw<Map<string, Passage>>(new Map());
  report = $state.raw<ExposureReport | undefined>(undefined);
  degraded = $state.raw<Degradation[]>([]);
  done = $state.raw<Done | undefined>(undefined);
  error = $state.raw<unknown>(undefined);
  running = $state(true);
  stopped = $state(false);
  #abort = new AbortController();

  /** @param settings `members` are those of the ensemble, also where it is asked by its name. */
  constructor(settings: VoteSettings) {
    this.settings = settings;
    this.members = settings.members.map((name) => ({ name: unspaced(name) }));
    void this.#run();
  }

  stop(): void {
    this.stopped = true;
    this.#abort.abort();
  }

  async #run(): Promise<void> {
    const { question, name, members, reranker, model } = this.settings;
    const ensemble = name ? { name } : { expressions: members };
    try {
      for await (const event of mesh.ask(question, { ensemble, reranker, model }, { signal: this.#abort.signal })) {
        if (event.case === "retrieved") {
          this.passages = new Map([...this.passages, ...event.value.passages.map((one) => [one.id, one] as const)]);
        } else if (event.case === "ranked") this.#know(event.value.member, { ranked: event.value });
        else if (event.case === "answer") {
          const place = 1 + this.members.filter((one) => one.answer).length;
          this.#know(event.value.member, { answer: event.value, place });
        } else if (event.case === "failed") this.#know(event.value.member, { failed: event.value });
        else if (event.case === "vote") {
          if (event.value.final) this.final = event.value;
          else this.votes = [...this.votes, event.value];
        } else if (event.case === "report") this.report = event.value;
        else if (event.case === "degraded") this.degraded = [...this.degraded, event.value];
        else if (event.case === "done") this.done = event.value;
      }
    } catch (error) {
      if (!this.stopped) this.error = error;
    } finally {
      this.running = false;
    }
  }

  #know(name: string, news: Omit<Member, "name">): void {
    this.members = this.members.map((one) => (one.name === name ? { ...one, ...news } : one));
  }
}

/** The mesh names a member by its expression without blanks. */
const unspaced = (expression: string): string => expression.replace(/\s+/g, "");

/** What ensembles can be made of, as the orchestrator was set up. */
export async function listEnsembles(signal: AbortSignal): Promise<ListEnsemblesResponse> {
  return mesh.orchestrator.listEnsembles({}, { signal });
}

const ALWAYS = ["PK", "ReFree"];

/** Members to begin with: each source as it finds, and ranked again. */
export function suggested(sources: string[]): string[] {
  const own = sources.filter((one) => !ALWAYS.includes(one));
  const plain = own.map((one) => `${one}@3`);
  const ranked = own.map((one) => `${one}@RR@3`);
  return [...plain, ...ranked, ...(own.length > 1 ? [`${own[0]}@2&${own[1]}@2`] : [])].slice(0, 5);
}
