"""A statement as one page to read and to print: HTML without scripts or anything from elsewhere."""

from html import escape
from typing import TYPE_CHECKING, Final

from evenmesh.commands.statement import caveats, interval
from evenmesh.commands.views import configuration_shown

if TYPE_CHECKING:
    from evenmesh.types.statements import ExposureStatement, SignedStatement

_STYLE: Final = """
body { font: 11pt/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; } table { border-collapse: collapse; width: 100%; }
caption { text-align: left; padding: .5rem 0; }
th, td { border-bottom: 1px solid #bbb; padding: .3rem .5rem; text-align: right; }
th:first-child, td:first-child { text-align: left; }
code { overflow-wrap: anywhere; font-size: 9pt; }
@page { size: A4 landscape; margin: 15mm; }
@media print {
  body { margin: 0; max-width: none; }
  tr { break-inside: avoid; }
  thead { display: table-header-group; }
}
"""
_COLUMNS: Final = ("configuration", "found", "shown", "cited", "exposure", "target", "owed")


def page(stated: "ExposureStatement", signed: "SignedStatement") -> str:
    """Return the page of a statement; it says how to verify the signed file, which it is not itself."""
    rows = "".join(
        "<tr>"
        + "".join(
            f"<td>{escape(cell)}</td>"
            for cell in (
                configuration_shown(one.configuration),
                f"{one.num_found:,}",
                f"{one.num_shown:,}",
                f"{one.num_cited:,}",
                *map(interval, (one.exposure, one.target, one.owed)),
            )
        )
        + "</tr>"
        for one in stated.configurations
    )
    heads = "".join(f'<th scope="col">{name}</th>' for name in _COLUMNS)
    days = f"{escape(stated.first_day)} to {escape(stated.last_day)}"
    keys = ", ".join(escape(one.keyid) for one in signed.signatures)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f"<title>Exposure statement: {escape(stated.provider)}</title><style>{_STYLE}</style></head><body>"
        f"<h1>Exposure statement: {escape(stated.provider)}</h1>"
        f"<table><caption>Tenant {escape(stated.tenant)}, {days} (UTC)</caption>"
        f"<thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>"
        f"<p>{escape(caveats(stated))}</p>"
        f"<p>Signed by key <code>{keys}</code>, nonce <code>{escape(stated.nonce) or '–'}</code>. "
        "This page is not signed: verify the signed file with "
        "<code>evenmesh statement verify FILE --keys KEYS</code>.</p>"
        "</body></html>\n"
    )
