/** Audits as this browser keeps them (IndexedDB), each under who began it: they go on after the tab was closed. */

import { openDB, type DBSchema, type IDBPDatabase } from "idb";

import type { Outcome } from "./outcome";
import type { Plan } from "./plan";

export type State = "ready" | "running" | "waiting" | "stopped" | "budget" | "done";

/** An audit without its results; `budget` is the most answers that it may take. */
export interface Kept {
  id: string;
  /** Tenant and name of who began it. */
  whose: string;
  plan: Plan;
  budget: number;
  state: State;
}

interface Schema extends DBSchema {
  audits: { key: string; value: Kept; indexes: { whose: string } };
  outcomes: { key: [string, number]; value: Outcome };
  /** One JSON line for each ranking of a call, in the format of `evenmesh eval`. */
  records: { key: [string, number]; value: string };
}

let opened: Promise<IDBPDatabase<Schema>> | undefined;

function database(): Promise<IDBPDatabase<Schema>> {
  return (opened ??= openDB<Schema>("evenmesh-audits", 2, {
    async upgrade(made, before, _, change) {
      if (before === 1) return ofOne(change.objectStore("audits"));
      made.createObjectStore("audits", { keyPath: "id" }).createIndex("whose", "whose");
      made.createObjectStore("outcomes");
      made.createObjectStore("records");
    },
    terminated: () => (opened = undefined),
  }));
}

/** Rewrite the audits of the first version, which had one retriever and one model. */
async function ofOne(audits: { getAll(): Promise<Kept[]>; put(value: Kept): Promise<unknown> }): Promise<void> {
  for (const one of await audits.getAll()) {
    const { retriever, model, ...plan } = one.plan as Plan & { retriever: string; model: string };
    await audits.put({ ...one, plan: { ...plan, retrievers: [retriever], models: [model] } });
  }
}

const ofAudit = (id: string): IDBKeyRange => IDBKeyRange.bound([id], [id, Infinity]);

/** Return the audits of somebody. */
export async function list(whose: string): Promise<Kept[]> {
  return (await database()).getAllFromIndex("audits", "whose", whose);
}

export async function keep(audit: Kept): Promise<void> {
  await (await database()).put("audits", audit);
}

/** Keep what came of a call, all of it or nothing. */
export async function add(id: string, place: number, outcome: Outcome, records: string): Promise<void> {
  const change = (await database()).transaction(["outcomes", "records"], "readwrite");
  await Promise.all([
    change.objectStore("outcomes").put(outcome, [id, place]),
    change.objectStore("records").put(records, [id, place]),
    change.done,
  ]);
}

/** Return what came of the calls so far, by their place in the plan. */
export async function outcomes(id: string): Promise<Map<number, Outcome>> {
  const read = (await database()).transaction("outcomes");
  const [keys, values] = await Promise.all([read.store.getAllKeys(ofAudit(id)), read.store.getAll(ofAudit(id))]);
  return new Map(keys.map((key, index) => [key[1], values[index]!]));
}

/** Return the records of the rankings of some calls so far. */
export async function records(id: string, wanted: (place: number) => boolean): Promise<string[]> {
  const read = (await database()).transaction("records");
  const [keys, values] = await Promise.all([read.store.getAllKeys(ofAudit(id)), read.store.getAll(ofAudit(id))]);
  return values.filter((_, index) => wanted(keys[index]![1]));
}

export async function remove(id: string): Promise<void> {
  const change = (await database()).transaction(["audits", "outcomes", "records"], "readwrite");
  await Promise.all([
    change.objectStore("audits").delete(id),
    change.objectStore("outcomes").delete(ofAudit(id)),
    change.objectStore("records").delete(ofAudit(id)),
    change.done,
  ]);
}
