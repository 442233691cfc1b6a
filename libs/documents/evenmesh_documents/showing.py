"""Show what was read, before any of it is added."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from evenmesh.commands.screen import Screen

if TYPE_CHECKING:
    from evenmesh_documents.gathering import Gathered
    from evenmesh_documents.origins.found import Found
    from evenmesh_documents.splitting import Splitting

_SHOWN: Final = 15
"""Most lines of a kind that are shown."""


def reading_display(screen: Screen, files: "Sequence[Found]") -> Any:
    """Return a display of files that are read."""
    from evenmesh.commands.progress import ProgressDisplay

    said = "reading 1 file" if len(files) == 1 else f"reading {len(files):,} files"
    return ProgressDisplay(screen, "reading files", note=said, total=len(files))


def show_gathered(screen: Screen, gathered: "Gathered", splitting: "Splitting") -> None:
    """Show what was read, who provides it, and what is to be known before it is added."""
    size = f"{splitting.size:,} {splitting.unit}"
    screen.line(f"{gathered.files:,} files, {gathered.passages:,} passages of at most {size}")
    if gathered.providers:
        table = screen.table("provider", "passages", right=("passages",))
        shown = list(gathered.providers.items())
        for provider, count in shown[:_SHOWN]:
            table.add_row(provider, f"{count:,}")
        if len(shown) > _SHOWN:
            table.add_row(
                f"and {len(shown) - _SHOWN:,} more", f"{sum(count for _, count in shown[_SHOWN:]):,}"
            )
        screen.out.print(table)
        by = ", ".join(f"{rule} ({count:,})" for rule, count in gathered.rules.items())
        if by:
            screen.line(f"providers by {by}", style="dim")
    if splitting.unit == "words":
        # A model cuts what is longer than it reads, and says so nowhere.
        screen.line(
            "! sizes are counted in words, so a model may read less of a passage than it has; "
            "--tokenizer counts its tokens",
            style="yellow",
        )
    for line in _warnings(gathered):
        screen.line(f"! {line}", style="yellow")
    show_list(screen, "not read", [f"{one.address}: {one.reason}" for one in gathered.skipped])
    show_list(screen, "read in part", [f"{one.address}: {one.reason}" for one in gathered.notes])
    show_list(screen, "without text", list(gathered.empty))


def _warnings(gathered: "Gathered") -> list[str]:
    same = gathered.duplicates
    lines = [
        (
            gathered.only_provider,
            f"every passage is of {gathered.only_provider!r}: exposure among providers will say nothing; "
            "see --provider",
        ),
        (
            gathered.without_provider,
            f"{gathered.without_provider:,} passages have no provider and count as one, (unknown); "
            "see --provider",
        ),
        (same.dropped, f"{same.dropped:,} passages repeat a text of the same provider and are left out"),
        (same.mirrored, f"{same.mirrored:,} texts are of several providers; each keeps its own passage"),
        (same.near, f"{same.near:,} passages are nearly the same as another{_example(same.examples)}"),
        (gathered.oversize, f"{gathered.oversize:,} passages are longer: a row of a table is not divided"),
    ]
    return [line for wanted, line in lines if wanted]


def _example(examples: "Sequence[tuple[str, str]]") -> str:
    return f", such as {examples[0][0]} and {examples[0][1]}" if examples else ""


def show_list(screen: Screen, what: str, lines: Sequence[str]) -> None:
    if not lines:
        return
    screen.line(f"{what}: {len(lines):,}", style="bold")
    for line in lines[:_SHOWN]:
        screen.line(f"  {line}")
    if len(lines) > _SHOWN:
        screen.line(f"  and {len(lines) - _SHOWN:,} more (--json lists all)")
