/** A conversation, and each of its turns as it streams in. */

import { Code, MeshError, type TurnOptions } from "evenmesh";
import { EvaluateConversationRequest_Method as Method } from "evenmesh/gen/evenmesh/evaluator/v1/evaluator_service_pb.js";
import type { Degradation, ItemError, Passage } from "evenmesh/gen/evenmesh/common/v1/common_pb.js";
import {
  ConversationOptions_History as History,
  type AnswerEvent,
  type ConversationReport,
} from "evenmesh/gen/evenmesh/orchestrator/v1/orchestrator_service_pb.js";

import { optionsOf, type Settings } from "./ask.svelte";
import { mesh } from "./session.svelte";

export { History, Method };

/** What a conversation is measured against: an attribute of passages, its groups, and the share of each. */
export interface Target {
  attribute: string;
  groups: string[];
  shares: number[];
}

/** How the turns of a conversation are taken. */
export interface TalkSettings {
  ask: Omit<Settings, "question" | "useful">;
  history: History;
  /** Whether a turn is compared by its own sources, or by those of all turns so far. */
  method: Method;
  target: Target | undefined;
}

/** One turn under way or at its end. */
export class Turn {
  readonly question: string;
  /** What was searched for, where it differs from the question. */
  searched = $state("");
  text = $state("");
  passages = $state.raw<Map<string, Passage>>(new Map());
  answer = $state.raw<AnswerEvent | undefined>(undefined);
  report = $state.raw<ConversationReport | undefined>(undefined);
  degraded = $state.raw<Degradation[]>([]);
  failed = $state.raw<ItemError | undefined>(undefined);
  error = $state.raw<unknown>(undefined);
  running = $state(true);
  stopped = $state(false);
  /** Whether the turn is part of the conversation. */
  counted = $state(false);
  /** The target that it was measured against. */
  readonly target: Target | undefined;
  readonly method: Method;
  readonly abort = new AbortController();

  constructor(question: string, { target, method }: TalkSettings) {
    this.question = question;
    this.target = target;
    this.method = method;
  }

  stop(): void {
    this.stopped = true;
    this.abort.abort();
  }
}

/** A conversation of the page, of turns that were taken one after another. */
export class Talk {
  id = $state("");
  turns = $state.raw<Turn[]>([]);
  /** The conversation as it was measured, in the format that is saved. */
  transcript = $state("");

  /** The turns that are part of the conversation, oldest first. */
  get counted(): Turn[] {
    return this.turns.filter((turn) => turn.counted);
  }

  /** Whether the mesh no longer holds the conversation. */
  get lost(): boolean {
    const { error } = this.turns.at(-1) ?? {};
    return this.counted.length > 0 && error instanceof MeshError && error.code === Code.NotFound && error.field === "conversation_id";
  }

  async take(question: string, settings: TalkSettings): Promise<void> {
    const turn = new Turn(question, settings);
    // A turn that came to nothing makes way for the next one; the mesh has not counted it either.
    this.turns = [...this.counted, turn];
    try {
      for await (const one of mesh.turn(question, this.#options(settings), { signal: turn.abort.signal })) {
        this.id = one.conversationId;
        const event = one.event?.event;
        if (one.lookedFor) turn.searched = one.lookedFor;
        if (one.failed) turn.failed = one.failed.error;
        if (one.report) turn.report = one.report;
        if (event?.case === "retrieved") turn.passages = new Map(event.value.passages.map((passage) => [passage.id, passage]));
        else if (event?.case === "delta") turn.text += event.value.text;
        else if (event?.case === "answer") turn.answer ??= event.value;
        else if (event?.case === "degraded") turn.degraded = [...turn.degraded, event.value];
        else if (event?.case === "done") {
          turn.counted = true;
          this.transcript = one.transcript;
        }
      }
    } catch (error) {
      if (!turn.stopped) turn.error = error;
    } finally {
      turn.running = false;
      this.turns = [...this.turns];
    }
  }

  #options({ ask, history, method, target }: TalkSettings): TurnOptions {
    return {
      ask: optionsOf({ ...ask, question: "", useful: [] }),
      // The mesh keeps no conversation without a turn: its id would be refused.
      conversationId: this.counted.length ? this.id : "",
      options: { history, method, targets: target ? [target] : [] },
    };
  }
}
