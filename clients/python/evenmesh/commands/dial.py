"""Options that say how even rankings are, which commands share."""

from typing import Annotated

import typer

Alpha = Annotated[
    float | None,
    typer.Option(help="Fairness dial: 0 is uniform, larger follows the scores. Samples rankings."),
]
Disparity = Annotated[
    float | None,
    typer.Option(help="Instead of --alpha: the expected EE-D to reach, 0 to 1."),
]
RelevanceLoss = Annotated[
    float | None,
    typer.Option(help="Instead of --alpha: the share of relevance to give up at most, such as 0.02."),
]
Share = Annotated[
    list[str] | None,
    typer.Option(
        metavar="ATTRIBUTE[=VALUE]<=N",
        help="Instead of --alpha: a bound on a group's share of the exposure, such as 'provider<=0.4' or "
        "'group=female>=0.3'. May be repeated.",
    ),
]
Samples = Annotated[int | None, typer.Option("--samples", "-n", min=1, max=1000, help="Rankings to sample.")]
