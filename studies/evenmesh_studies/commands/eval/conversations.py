"""``evenmesh eval conversation``: measure annotated conversations."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from evenmesh.commands.failure import USAGE, CommandError
from evenmesh.commands.option_groups import with_groups
from evenmesh_studies.commands.eval import options
from evenmesh_studies.commands.eval.outputs import DrawnOutputs, deliver, reported


@with_groups
def conversation(
    *,
    files: Annotated[
        list[Path],
        typer.Argument(help="Annotated conversations, a file per system: as in GFRC's figure 5, or .jsonl."),
    ],
    attributes: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help='Targets: {"RATINGS": {"groups": 4, "divergence": "rnod"}}.'),
    ] = None,
    patience: Annotated[float, typer.Option(min=1, help="Words a user reads before giving up.")] = 1250,
    alpha: Annotated[float, typer.Option(min=0, max=1, help="Weight of relevance in GFRC.")] = 0.5,
    cumulative: Annotated[
        bool, typer.Option("--cumulative", help="Count the groups of all turns so far in each turn.")
    ] = False,
    irrelevant: Annotated[
        str, typer.Option(metavar="ignore|uniform", help="How to count turns without relevant nuggets.")
    ] = "ignore",
    position_turns: Annotated[
        bool, typer.Option("--position-turns", help="Count late turns less in group fairness.")
    ] = False,
    attribute_weight: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=W", help="Weight of an attribute in group fairness, sum 1. Repeatable."),
    ] = None,
    intervals: options.Intervals,
    outputs: DrawnOutputs,
) -> None:
    """Measure relevance and fairness of conversations (GFRC)."""
    outputs.check()
    with reported():
        from evenmesh_lab.files import read_attributes, read_conversations, uniform_attributes
        from evenmesh_lab.studies import conversation as study

        names = [path.name.partition(".")[0] for path in files]
        systems = [
            str(path) if names.count(name) > 1 else name for path, name in zip(files, names, strict=True)
        ]
        transcripts = {system: read_conversations(path) for system, path in zip(systems, files, strict=True)}
        notes = []
        targets = uniform_attributes(transcripts) if attributes is None else read_attributes(attributes)
        if not targets:
            raise CommandError("the conversations have no attribute to measure fairness by", USAGE)
        if attributes is None:
            notes.append(
                f"no --attributes: {', '.join(targets)} compared with equal shares of the groups, by RNOD"
            )
        found = study.measure(
            transcripts,
            targets,
            patience=patience,
            method="cumulative" if cumulative else "independent",
            irrelevant_turns=_irrelevant(irrelevant),
            turn_weights="position" if position_turns else "equal",
            attribute_weights=_weights(attribute_weight),
            alpha=alpha,
            bootstrap=intervals.bootstrap(),
        )
        deliver(found, outputs, title="Conversations", files=files, notes=notes)


def _weights(given: list[str] | None) -> dict[str, float] | None:
    """Read weights like ``GENDER=0.7``; their names and sum are checked by the study."""
    found = {}
    for one in given or ():
        name, equals, weight = one.rpartition("=")
        try:
            found[name] = float(weight)
        except ValueError:
            equals = ""
        if not equals:
            raise CommandError(f"--attribute-weight is {one!r}; must be a name and a number: NAME=0.5", USAGE)
    return found or None


def _irrelevant(name: str) -> Literal["ignore", "uniform"]:
    if name == "ignore":
        return "ignore"
    if name == "uniform":
        return "uniform"
    raise CommandError(f"--irrelevant is {name!r}; allowed: ignore, uniform", USAGE)
