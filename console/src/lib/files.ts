/** Files that the console makes: saved to disk, and rows as CSV. */

/** Offer a file to be saved. */
export function save(name: string, parts: BlobPart[], type: string): void {
  const link = Object.assign(document.createElement("a"), { href: URL.createObjectURL(new Blob(parts, { type })), download: name });
  link.click();
  URL.revokeObjectURL(link.href);
}

/** Return rows as CSV (RFC 4180); a missing value is an empty cell. */
export function csv(rows: readonly (readonly (string | number | undefined)[])[]): string {
  return rows.map((row) => row.map(cell).join(",")).join("\r\n") + "\r\n";
}

function cell(value: string | number | undefined): string {
  if (typeof value !== "string") return value === undefined || Number.isNaN(value) ? "" : String(value);
  // A spreadsheet would compute what begins like a formula.
  const text = /^[=+\-@\t\r]/.test(value) ? `'${value}` : value;
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}
