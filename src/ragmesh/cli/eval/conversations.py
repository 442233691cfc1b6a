"""``ragmesh eval conversation``: annotated conversations."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from ragmesh.cli.eval import options
from ragmesh.cli.eval.outputs import Outputs, deliver, reported
from ragmesh.cli.failure import USAGE, CommandError


def conversation(
    files: Annotated[
        list[Path],
        typer.Argument(help="Annotated conversations, a system a file: as in GFRC's figure 5, or .jsonl."),
    ],
    attributes: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help='Targets: {"RATINGS": {"groups": 4, "divergence": "rnod"}}.'),
    ] = None,
    patience: Annotated[float, typer.Option(min=1, help="Words a user reads before giving up.")] = 1250,
    alpha: Annotated[float, typer.Option(min=0, max=1, help="Weight of relevance in GFRC.")] = 0.5,
    cumulative: Annotated[
        bool, typer.Option("--cumulative", help="A turn's groups are those of all turns so far.")
    ] = False,
    irrelevant: Annotated[
        str, typer.Option(metavar="ignore|uniform", help="What becomes of turns without relevant nuggets.")
    ] = "ignore",
    level: options.Level = 0.95,
    interval: options.Method = "bca",
    resamples: options.Resamples = 2000,
    seed: options.Seed = 0,
    as_json: options.Json = None,
    csv: options.Csv = None,
    plot: options.Plot = None,
    html: options.Html = None,
) -> None:
    """Relevance and group fairness of conversations (GFRC)."""
    outputs = Outputs(as_json, csv, plot, html)
    outputs.check()
    with reported():
        from raglab.files import read_attributes, read_conversations, uniform_attributes
        from raglab.studies import conversation as study

        names = [path.name.partition(".")[0] for path in files]
        systems = [
            str(path) if names.count(name) > 1 else name for path, name in zip(files, names, strict=True)
        ]
        transcripts = {system: read_conversations(path) for system, path in zip(systems, files, strict=True)}
        notes = []
        targets = uniform_attributes(transcripts) if attributes is None else read_attributes(attributes)
        if not targets:
            raise CommandError("the conversations have no attribute to be fair about", USAGE)
        if attributes is None:
            notes.append(
                f"no --attributes: {', '.join(targets)} held against the same share for each group, by RNOD"
            )
        found = study.measure(
            transcripts,
            targets,
            patience=patience,
            method="cumulative" if cumulative else "independent",
            irrelevant_turns=_irrelevant(irrelevant),
            alpha=alpha,
            bootstrap=options.bootstrap(level, resamples, seed, interval),
        )
        deliver(found, outputs, title="Conversations", files=files, notes=notes)


def _irrelevant(name: str) -> Literal["ignore", "uniform"]:
    if name == "ignore":
        return "ignore"
    if name == "uniform":
        return "uniform"
    raise CommandError(f"--irrelevant is {name!r}; allowed: ignore, uniform", USAGE)
