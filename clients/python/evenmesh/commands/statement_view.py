"""What a statement shows: its rows, what a reader must know of them, and one page to read and to print."""

from collections.abc import Iterator
from html import escape
from typing import TYPE_CHECKING, Final

from evenmesh.commands.views import configuration_shown

if TYPE_CHECKING:
    from evenmesh.types.reports import Estimate
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
COLUMNS: Final = ("configuration", "found", "shown", "cited", "exposure", "target", "owed")


def rows(stated: "ExposureStatement") -> Iterator[tuple[str, ...]]:
    """Yield the entries of each configuration, by :data:`COLUMNS`."""
    for one in stated.configurations:
        counts = (one.num_found, one.num_shown, one.num_cited)
        shares = (one.exposure, one.target, one.owed)
        yield (
            configuration_shown(one.configuration),
            *(f"{count:,}" for count in counts),
            *map(_interval, shares),
        )


def caveats(stated: "ExposureStatement") -> str:
    """Return what a reader of a statement must know of its numbers, in a few sentences."""
    text = (
        "Exposure is the provider's part of the context, target the part that it deserves by relevance, "
        f"both per ask. Configurations with fewer than {stated.min_asks} asks are left out"
    )
    if stated.num_left_out:
        text += f"; {stated.num_left_out} are"
    if stated.epsilon is not None:
        text += f". All numbers carry noise for privacy, budget {stated.epsilon:g} for each ask on its day"
    return f"{text}. Issued at {stated.issued_at.isoformat(timespec='seconds')}."


def page(stated: "ExposureStatement", signed: "SignedStatement") -> str:
    """Return the page of a statement, without scripts or anything from elsewhere.

    It says how to verify the signed file, which it is not itself.
    """
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows(stated))
    heads = "".join(f'<th scope="col">{name}</th>' for name in COLUMNS)
    days = f"{escape(stated.first_day)} to {escape(stated.last_day)}"
    keys = ", ".join(escape(one.keyid) for one in signed.signatures)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f"<title>Exposure statement: {escape(stated.provider)}</title><style>{_STYLE}</style></head><body>"
        f"<h1>Exposure statement: {escape(stated.provider)}</h1>"
        f"<table><caption>Tenant {escape(stated.tenant)}, {days} (UTC)</caption>"
        f"<thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>"
        f"<p>{escape(caveats(stated))}</p>"
        f"<p>Signed by key <code>{keys}</code>, nonce <code>{escape(stated.nonce) or '–'}</code>. "
        "This page is not signed: verify the signed file with "
        "<code>evenmesh statement verify FILE --keys KEYS</code>.</p>"
        "</body></html>\n"
    )


def _interval(value: "Estimate") -> str:
    """Return a share with its interval, in per cent."""
    if value.mean is None:
        return "–"
    if value.low is None or value.high is None:
        return f"{value.mean:.1%}"
    return f"{value.mean:.1%} ({value.low:.1%} to {value.high:.1%})"
