/** Signed statements: as they are read, kept in files, and verified (DSSE 1.0, Ed25519). */

import { fromJson, fromJsonString, toJsonString, type JsonValue } from "@bufbuild/protobuf";
import {
  ExposureStatementSchema,
  StatementEnvelopeSchema,
  type ExposureStatement,
  type StatementEnvelope,
} from "evenmesh/gen/evenmesh/evaluator/v1/evaluator_service_pb.js";

const TYPE = "application/vnd.evenmesh.exposure-statement.v1+json";
/** Largest accepted difference of clocks. Milliseconds. */
const LEEWAY_MS = 300_000;
/** Bytes of a public key in its usual wrapping (RFC 8410): 12 that say Ed25519, and its 32. */
const WRAPPED = 44;

/** What is wrong with a statement or a key, in plain words. */
export class StatementError extends Error {}

/** Return a random nonce: a statement that repeats it was made for this request. */
export function newNonce(): string {
  return [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** Return what an envelope states, without any check of who signed it. */
export function read(envelope: StatementEnvelope): ExposureStatement {
  try {
    return fromJsonString(ExposureStatementSchema, new TextDecoder("utf-8", { fatal: true }).decode(envelope.payload), { ignoreUnknownFields: true });
  } catch {
    throw new StatementError("the payload is no exposure statement");
  }
}

/** Return the file of an envelope, which `evenmesh statement verify` reads. */
export const fileOf = (envelope: StatementEnvelope): string => `${toJsonString(StatementEnvelopeSchema, envelope, { prettySpaces: 2 })}\n`;

/** Read a file of a signed statement: an envelope, or the gateway's reply that holds one. */
export function parse(text: string): StatementEnvelope {
  try {
    const content = JSON.parse(text) as Record<string, JsonValue>;
    const envelope = fromJson(StatementEnvelopeSchema, content["envelope"] ?? content);
    if (!envelope.payload.length || !envelope.signatures.length) throw new Error();
    return envelope;
  } catch {
    throw new StatementError("the file is not a signed statement, or only a part of one");
  }
}

/** Return the statement that a file holds once one of the public keys (PEM) has signed it; `provider` is whom it must be about. */
export async function verify(text: string, pem: string, provider: string): Promise<{ statement: ExposureStatement; key: string }> {
  const envelope = parse(text);
  if (envelope.payloadType !== TYPE) throw new StatementError(`the file is not of the type ${TYPE}`);
  const keys = await publicKeys(pem);
  const signature = envelope.signatures.find((one) => keys.has(one.keyid));
  if (!signature) throw new StatementError("no signature is of a key that you gave");
  const signed = await crypto.subtle.verify("Ed25519", keys.get(signature.keyid)!, new Uint8Array(signature.sig), signedBytes(envelope));
  if (!signed) throw new StatementError("the signature is not of this statement: it was forged, changed or cut");
  const statement = read(envelope);
  if (provider && statement.provider !== provider) throw new StatementError(`it is about “${statement.provider}”, not “${provider}”`);
  if (issuedAt(statement) > Date.now() + LEEWAY_MS) throw new StatementError("it was issued in the future");
  return { statement, key: signature.keyid };
}

/** Return when a statement was issued. Milliseconds since 1970. */
export const issuedAt = (statement: ExposureStatement): number => 1000 * Number(statement.issuedAt?.seconds ?? 0n);

/** Return what a signature is about: DSSE's pre-authentication encoding of type and payload. */
function signedBytes({ payload, payloadType }: StatementEnvelope): Uint8Array<ArrayBuffer> {
  const kind = new TextEncoder().encode(payloadType);
  const head = new TextEncoder().encode(`DSSEv1 ${kind.length} ${payloadType} ${payload.length} `);
  const all = new Uint8Array(head.length + payload.length);
  all.set(head);
  all.set(payload, head.length);
  return all;
}

/** Read Ed25519 public keys, by name: the first 16 hexadecimal digits of the SHA-256 of their 32 bytes. */
async function publicKeys(pem: string): Promise<Map<string, CryptoKey>> {
  const found = new Map<string, CryptoKey>();
  for (const [, base64] of pem.matchAll(/-----BEGIN PUBLIC KEY-----([^-]*)-----END PUBLIC KEY-----/g)) {
    try {
      const wrapped = Uint8Array.from(atob(base64!.replace(/\s/g, "")), (sign) => sign.charCodeAt(0));
      const key = await crypto.subtle.importKey("spki", wrapped, "Ed25519", false, ["verify"]);
      const hash = new Uint8Array(await crypto.subtle.digest("SHA-256", wrapped.slice(WRAPPED - 32)));
      found.set([...hash.slice(0, 8)].map((byte) => byte.toString(16).padStart(2, "0")).join(""), key);
    } catch (error) {
      if (error instanceof DOMException && error.name === "NotSupportedError")
        throw new StatementError("this browser does not know Ed25519: use evenmesh statement verify");
      throw new StatementError("a public key cannot be read, or is not Ed25519");
    }
  }
  if (!found.size) throw new StatementError("the file of keys holds no public key in PEM");
  return found;
}
