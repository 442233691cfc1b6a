/** Reports: one HTML file each, without scripts, that loads nothing. */

/** Those of the page, for curves that stand side by side. */
const COLOURS = `:root{${["#2f7fd1", "#e2822b", "#1f9e86", "#c0559a", "#c7a02a", "#7d66d9", "#6aa23a", "#c25440"].map((one, index) => `--provider-${index}:${one}`).join(";")}}`;

const STYLE = `:root{color-scheme:light dark;--ink:#22302f;--paper:#fffefb;--quiet:#57655f;--line:#d9d5c8;--curve:#0b6b5d}
@media(prefers-color-scheme:dark){:root{--ink:#dfe6e2;--paper:#192321;--quiet:#9aa9a3;--line:#33443f;--curve:#5fd0bb}}
body{font:16px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);max-width:60rem;margin:2rem auto;padding:0 1rem}
h1{font-size:1.6rem}h2{font-size:1.15rem;margin-top:2rem}table{border-collapse:collapse;margin:.6rem 0}
th,td{padding:.25rem 1rem .25rem 0;text-align:start;border-bottom:1px solid var(--line);font-weight:400;vertical-align:top}
thead th{color:var(--quiet)}svg{max-width:100%;height:auto}p,caption{color:var(--quiet);text-align:start}
.grid{stroke:var(--line)}.tick,.axis{fill:var(--quiet);font-size:11.5px}.point-name{fill:var(--ink);font-size:11.5px}
.line{fill:none;stroke:var(--curve);stroke-width:2.2}.error{stroke:var(--curve);stroke-width:1.4;opacity:.65}
.dot{fill:var(--curve)}.dot.by-score{fill:var(--paper);stroke:var(--curve);stroke-width:2}.error.by-score{stroke-dasharray:3 2}
${COLOURS}
.band{fill:var(--curve);opacity:.16}.ask-dot{fill:#2f7fd1;opacity:.5}`;

/** Return a text as HTML. */
export const safe = (value: string): string => value.replace(/[&<>"']/g, (sign) => `&#${sign.charCodeAt(0)};`);

/** Return rows of texts as a table; with heads above it, if any. */
export function table(rows: readonly (readonly string[])[], heads: readonly string[] = []): string {
  const row = (cells: readonly string[], tag: string): string => `<tr>${cells.map((one) => `<${tag}>${safe(one)}</${tag}>`).join("")}</tr>`;
  const head = heads.length ? `<thead>${row(heads, "th")}</thead>` : "";
  return `<table>${head}<tbody>\n${rows.map((one) => row(one, "td")).join("\n")}\n</tbody></table>`;
}

/** Return a report with a title; `body` is HTML. */
export function page(title: string, body: string): string {
  return `<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>${safe(title)}</title><style>${STYLE}</style></head><body>
<h1>${safe(title)}</h1>
${body}
</body></html>
`;
}
