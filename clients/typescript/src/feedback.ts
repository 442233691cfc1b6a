/** The idempotency id of feedback that has none: the one that the Python client makes of the same content. */

import type { MessageInitShape } from "@bufbuild/protobuf";

import type { FeedbackSchema } from "./gen/evenmesh/reranker/v1/feedback_service_pb.js";

/** Feedback to give. An `id` that is left out is made of all the rest, so that the same feedback sent again counts once. */
export type FeedbackInit = Extract<MessageInitShape<typeof FeedbackSchema>, { $typeName?: never }>;

/** Most items, ranked passages and bytes of one call; the last with room for what frames its texts. */
const MOST = { items: 1_000, ranked: 200_000, bytes: 8_000_000 };

/** Yield feedback in calls, each as large as a call may be. */
export function* inCalls<T extends FeedbackInit>(feedback: Iterable<T>): Generator<T[]> {
  const text = new TextEncoder();
  let call: T[] = [];
  let [ranked, bytes] = [0, 0];
  for (const item of feedback) {
    const ranking = item.ranking ?? [];
    const { query, passageId, modelVersion, collection, agent } = item;
    const texts = [item.id, query, passageId, modelVersion, collection, agent?.taskId, agent?.modelId, ...ranking];
    const size = texts.reduce((sum, one) => sum + text.encode(one ?? "").length + 8, 32);
    if (call.length && (call.length === MOST.items || ranked + ranking.length > MOST.ranked || bytes + size > MOST.bytes)) {
      yield call;
      [call, ranked, bytes] = [[], 0, 0];
    }
    call.push(item);
    ranked += ranking.length;
    bytes += size;
  }
  if (call.length) yield call;
}

/**
 * Return the id of feedback: the first 32 hexadecimal digits of the SHA-256 of its content, as JSON in Python's form.
 *
 * Browsers have SHA-256 only on pages over HTTPS and of the same machine; on any other the id is random, and the same
 * feedback sent again counts twice.
 */
export async function feedbackId(item: FeedbackInit): Promise<string> {
  const texts = (...all: (string | undefined)[]): string[] => all.map((one) => inAscii(one ?? ""));
  const content = [
    ...texts(item.query, item.passageId),
    inPython(item.usefulness ?? 0),
    ...texts(item.agent?.taskId, item.agent?.modelId, item.modelVersion, item.collection, ...(item.ranking ?? [])),
  ];
  const { subtle } = globalThis.crypto as { subtle?: SubtleCrypto };
  const digest = subtle
    ? new Uint8Array(await subtle.digest("SHA-256", new TextEncoder().encode(`[${content.join(", ")}]`)))
    : globalThis.crypto.getRandomValues(new Uint8Array(16));
  return Array.from(digest.subarray(0, 16), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** Return a text as JSON in ASCII. */
function inAscii(text: string): string {
  return JSON.stringify(text).replace(/[\u007f-\uffff]/g, (unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

/** Return a number as Python writes a float: with a point, and with an exponent below 1e-4 and from 1e16 on. */
function inPython(value: number): string {
  if (!Number.isFinite(value)) return String(value);
  const [digits = "", power = ""] = value.toExponential().split("e");
  const exponent = Number(power);
  if (exponent < -4 || exponent >= 16) {
    return `${digits}e${exponent < 0 ? "-" : "+"}${String(Math.abs(exponent)).padStart(2, "0")}`;
  }
  const plain = Object.is(value, -0) ? "-0" : String(value);
  return plain.includes(".") ? plain : `${plain}.0`;
}
