/** The attributes of a collection's passages, and how often each value is there. */

import { mesh } from "./session.svelte";

/** Passages that are read to count them. */
export const MOST_COUNTED = 20_000;

/** Return how often each value of each attribute is there, among the first {@link MOST_COUNTED} passages. */
export async function attributesOf(collection: string, signal: AbortSignal): Promise<Map<string, Map<string, number>>> {
  const found = new Map<string, Map<string, number>>();
  let seen = 0;
  for await (const part of mesh.collections.listPassages({ collection }, { signal })) {
    for (const passage of part.passages) {
      for (const [name, value] of Object.entries(passage.attributes)) {
        const counts = found.get(name) ?? new Map<string, number>();
        counts.set(value, (counts.get(value) ?? 0) + 1);
        found.set(name, counts);
      }
    }
    seen += part.passages.length;
    if (seen >= MOST_COUNTED) break;
  }
  return found;
}
