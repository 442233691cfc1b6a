/** A colour for each provider, the same in every picture of a page. */

const COLOURS = 10;

/** Return the provider of a passage, or what stands for none. */
export const providerOf = (attributes: Record<string, string>): string => attributes["provider"] || UNKNOWN;

export const UNKNOWN = "no provider";

/** Return the CSS colour of each provider, in the order in which the names are given. */
export function colours(names: Iterable<string>): Map<string, string> {
  const found = new Map<string, string>();
  for (const name of names) {
    if (!found.has(name)) found.set(name, name === UNKNOWN ? "var(--unknown)" : `var(--provider-${found.size % COLOURS})`);
  }
  return found;
}
