import type { DescMethodServerStreaming, DescService, MessageInitShape } from "@bufbuild/protobuf";
import { createClient, type Client, type Interceptor, type Transport } from "@connectrpc/connect";

import { check, invalid } from "./checks.js";
import { feedbackId, inCalls, type FeedbackInit } from "./feedback.js";
import { EvaluatorService } from "./gen/evenmesh/evaluator/v1/evaluator_service_pb.js";
import { GeneratorService } from "./gen/evenmesh/generator/v1/generator_service_pb.js";
import {
  OrchestratorService,
  type AskRequestSchema,
  type AskResponse,
  type ConverseRequestSchema,
  type ConverseResponse,
  type ConverseResponseSchema,
} from "./gen/evenmesh/orchestrator/v1/orchestrator_service_pb.js";
import { FeedbackSchema, FeedbackService, type FeedbackResult } from "./gen/evenmesh/reranker/v1/feedback_service_pb.js";
import { RerankerService } from "./gen/evenmesh/reranker/v1/reranker_service_pb.js";
import { CollectionService } from "./gen/evenmesh/retriever/v1/collection_service_pb.js";
import { RetrieverService } from "./gen/evenmesh/retriever/v1/retriever_service_pb.js";
import { forMesh } from "./transport.js";

/** A credential: an API key or a token, or what returns the one of now; undefined where there is none. */
export type Credential = string | (() => string | undefined) | undefined;

/** How to answer a question: every field of `AskRequest` besides the question. */
export type AskOptions = Omit<Extract<MessageInitShape<typeof AskRequestSchema>, { $typeName?: never }>, "question">;

/** One event of an ask: `retrieved`, `ranked`, `delta`, `answer`, `report`, …, `done` last. */
export type AskEvent = Exclude<AskResponse["event"], { case: undefined }>;

/** How to take a turn: the fields of `ConverseRequest`; its `ask` without the question. */
export type TurnOptions = Omit<
  Extract<MessageInitShape<typeof ConverseRequestSchema>, { $typeName?: never }>,
  "ask" | "cancel"
> & { ask?: AskOptions };

/** Longest time for a call that is given none: without it a service that falls silent holds a call for ever. Milliseconds. */
export const TIMEOUT_MS = 60_000;

/** What a call may be given besides its request. */
export interface CallOptions {
  /** Ends the call. */
  signal?: AbortSignal;
  /** Longest time for the call; 60,000 without it, as in Python, and none at 0. Milliseconds. */
  timeoutMs?: number;
  /** Headers to send, such as a `traceparent`. */
  headers?: HeadersInit;
}

/** Return what sends a credential with every call. */
export function authorizing(credential: Credential): Interceptor {
  return (next) => (request) => {
    const key = typeof credential === "function" ? credential() : credential;
    if (key) request.header.set("authorization", `Bearer ${key}`);
    return next(request);
  };
}

/** Yield the messages of a call, and end the call where the loop over them is left: Connect's own iterables go on. */
async function* untilLeft<T>(call: CallOptions, open: (call: CallOptions) => AsyncIterable<T>): AsyncGenerator<T> {
  const ended = new AbortController();
  const end = (): void => ended.abort(call.signal?.reason);
  if (call.signal?.aborted) end();
  call.signal?.addEventListener("abort", end);
  try {
    yield* open({ ...call, signal: ended.signal });
  } finally {
    call.signal?.removeEventListener("abort", end);
    end();
  }
}

/**
 * `Converse` with one request in each stream, which browsers can send and which any server reads as a stream that has
 * ended.
 */
const converseOnce = { ...OrchestratorService.method.converse, methodKind: "server_streaming" } as unknown as
  DescMethodServerStreaming<typeof ConverseRequestSchema, typeof ConverseResponseSchema>;
const Turns = { ...OrchestratorService, method: { converse: converseOnce }, methods: [converseOnce] };

/** A mesh: a client of each service, and what is needed most. */
export class Mesh {
  readonly orchestrator: Client<typeof OrchestratorService>;
  readonly retriever: Client<typeof RetrieverService>;
  readonly collections: Client<typeof CollectionService>;
  readonly reranker: Client<typeof RerankerService>;
  readonly feedback: Client<typeof FeedbackService>;
  readonly generator: Client<typeof GeneratorService>;
  readonly evaluator: Client<typeof EvaluatorService>;
  readonly #turns: Client<typeof Turns>;

  /** @param transportOf returns the transport of a service; behind a gateway all have the same. */
  constructor(transportOf: (service: DescService) => Transport) {
    const client = <S extends DescService>(service: S) => createClient(service, forMesh(transportOf(service)));
    this.orchestrator = client(OrchestratorService);
    this.retriever = client(RetrieverService);
    this.collections = client(CollectionService);
    this.reranker = client(RerankerService);
    this.feedback = client(FeedbackService);
    this.generator = client(GeneratorService);
    this.evaluator = client(EvaluatorService);
    this.#turns = createClient(Turns, forMesh(transportOf(OrchestratorService)));
  }

  /**
   * Ask one question and yield events as they happen, `done` last. Leaving the loop ends the ask.
   *
   * @throws MeshError if the whole ask fails.
   */
  async *ask(question: string, options: AskOptions = {}, call: CallOptions = {}): AsyncGenerator<AskEvent> {
    for await (const { event } of untilLeft(call, (ends) => this.orchestrator.ask({ ...options, question }, ends))) {
      if (event.case !== undefined) yield event;
    }
  }

  /**
   * Take one turn of a conversation and yield its events as they happen; the last has `transcript`, or `failed`.
   *
   * Each turn is a call of its own. The first begins a conversation, and each event names its id, by which later turns
   * continue it (`conversationId`) once a turn of it has ended well: the mesh keeps none without. Leaving the loop
   * cancels the turn, and the conversation goes on without it.
   *
   * @throws MeshError if the mesh does not take the turn, such as one of a conversation that it no longer holds.
   */
  async *turn(question: string, options: TurnOptions = {}, call: CallOptions = {}): AsyncGenerator<ConverseResponse> {
    const request = { ...options, ask: { ...options.ask, question } };
    yield* untilLeft(call, (ends) => this.#turns.converse(request, ends));
  }

  /**
   * Record how useful passages were to agents; one outcome for each item, in order. They are sent 1,000 at a time.
   *
   * An item without an `id` gets one that is made of its content, as in the Python client: the same feedback sent again
   * is the same item, and one that is to count twice needs ids of its own. (Pages over plain HTTP of another machine
   * have no SHA-256: their ids are random.)
   *
   * @throws MeshError at once, if an item is none; if a call fails as a whole: the items of earlier ones are stored, and all may be sent again.
   */
  async giveFeedback(items: FeedbackInit[], call: CallOptions = {}): Promise<FeedbackResult[]> {
    if (!Array.isArray(items)) throw invalid("feedback", "must be an array of items");
    items.forEach((item, at) => check(FeedbackSchema, item, `feedback[${at}]`));
    const feedback = await Promise.all(items.map(async (item) => ({ ...item, id: item.id || (await feedbackId(item)) })));
    const results: FeedbackResult[] = [];
    for (const part of inCalls(feedback)) results.push(...(await this.feedback.recordFeedback({ feedback: part }, call)).results);
    return results;
  }
}
