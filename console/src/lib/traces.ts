/** Traces of asks, where whoever runs the mesh has said at which address they are shown. */

import { session } from "./session.svelte";

/** A trace that an ask begins: its id, and the header that says so (W3C Trace Context). */
export interface Trace {
  id: string;
  header: string;
}

/** Return random bytes as hexadecimal digits. */
export const hex = (bytes: number): string =>
  Array.from(crypto.getRandomValues(new Uint8Array(bytes)), (byte) => byte.toString(16).padStart(2, "0")).join("");

/** Begin a trace, to be recorded; undefined where nobody could look at it. */
export function begin(): Trace | undefined {
  if (!session.identity?.traces) return undefined;
  const id = hex(16);
  return { id, header: `00-${id}-${hex(8)}-01` };
}

/** Return the address of a trace by its id; empty where traces are not shown. */
export const addressOf = (id: string): string => (id ? (session.identity?.traces ?? "").replace("{trace_id}", id) : "");

/** Return the id of the trace that a `traceparent` names; empty if it names none. */
export const idOf = (header: string): string => /^[0-9a-f]{2}-([0-9a-f]{32})-/.exec(header)?.[1] ?? "";
