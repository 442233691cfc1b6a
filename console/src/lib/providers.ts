/** A colour for each provider, the same in every picture of a page. */

const COLOURS = 10;

/** Return the provider of a passage, or what stands for none. */
export const providerOf = (attributes: Record<string, string>): string => attributes["provider"] || UNKNOWN;

export const UNKNOWN = "no provider";

const given = new Map<string, string>();

/** Return the CSS colour of each provider; one that is new gets the next colour and keeps it on every page. */
export function colours(names: Iterable<string>): Map<string, string> {
  for (const name of names) {
    if (name !== UNKNOWN && !given.has(name)) given.set(name, `var(--provider-${given.size % COLOURS})`);
  }
  return new Map([...given, [UNKNOWN, "var(--unknown)"]]);
}
