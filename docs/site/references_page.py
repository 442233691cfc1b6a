"""The page of references, from docs/references.bib."""

from __future__ import annotations

import html
import re
from pathlib import Path
from urllib.parse import quote

from pybtex.database import Entry, parse_file

_KINDS = (
    ("The papers that evenmesh implements", "core"),
    ("Further papers and books", "paper"),
    ("Software", "software"),
)

_PLACES = ("journal", "booktitle", "publisher", "howpublished")


def page(bibliography: Path) -> str:
    """Return the references as Markdown, one anchor per key."""
    entries = parse_file(str(bibliography), bib_format="bibtex").entries
    lines = [
        "# References",
        "",
        "Every paper, book and library that the documentation and the code name, from `docs/references.bib`.",
    ]
    for title, kind in _KINDS:
        lines += ["", f"## {title}", ""]
        chosen = [one for one in entries.items() if one[1].fields.get("keywords", "paper") == kind]
        lines += [f"- {_line(key, entry)}" for key, entry in sorted(chosen, key=_order)]
    return "\n".join(lines) + "\n"


def _order(one: tuple[str, Entry]) -> tuple[str, str]:
    people = one[1].persons.get("author", [])
    return " ".join(people[0].last_names).lower() if people else "", one[1].fields.get("year", "")


def _line(key: str, entry: Entry) -> str:
    fields = entry.fields
    parts = [f"**{_authors(entry)}**{{#{key.lower()}}}"]
    parts += [f"({fields['year']})."] if "year" in fields else []
    parts.append(f"*{_plain(fields['title'])}*.")
    parts += [f"{_plain(fields[name])}." for name in _PLACES if name in fields]
    if "doi" in fields:
        doi = fields["doi"]  # old ones hold brackets
        parts.append(f"[doi:{html.escape(doi)}](https://doi.org/{quote(doi, safe='/')})")
    if "eprint" in fields:
        parts.append(f"[arXiv:{fields['eprint']}](https://arxiv.org/abs/{fields['eprint']})")
    if "url" in fields:
        parts.append(f"<{fields['url']}>")
    if "note" in fields:
        parts.append(_plain(fields["note"]))
    return " ".join(parts)


def _authors(entry: Entry) -> str:
    names = [
        " ".join(map(_plain, [*one.first_names, *one.middle_names, *one.prelast_names, *one.last_names]))
        for one in entry.persons.get("author", [])
    ]
    if len(names) > 4:
        return f"{names[0]} et al."
    return names[0] if len(names) == 1 else ", ".join(names[:-1]) + " and " + names[-1]


def _plain(text: str) -> str:
    return re.sub(r"[{}]|\\(?=[&_%#])", "", text).replace("--", "–").replace("~", " ")
