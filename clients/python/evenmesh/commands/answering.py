"""Options that ask and chat share: what is asked, and how it is answered."""

from dataclasses import dataclass
from typing import Annotated, Any

import typer

from evenmesh.commands.filters import FILTER_HELP, filter_of


@dataclass(frozen=True)
class Answering:
    """The shared options by the names of the SDK; see :class:`evenmesh.AskOptions`."""

    collection: Annotated[
        str | None, typer.Option("--collection", "-c", help="Collection to ask. Default: the mesh's own.")
    ] = None
    filter: Annotated[list[str] | None, typer.Option(help=FILTER_HELP)] = None
    seed: Annotated[
        int | None, typer.Option(min=0, help="Seed of the sampling. Default: drawn, and shown.")
    ] = None
    k: Annotated[int | None, typer.Option("-k", help="Passages the model is given.")] = None
    depth: Annotated[int | None, typer.Option(help="Size of the candidate pool.")] = None
    retriever: Annotated[str | None, typer.Option(help="Retriever by name, such as bm25.")] = None
    reranker: Annotated[str | None, typer.Option(help="cross-encoder, rankrag, remote or none.")] = None
    fusion: Annotated[
        float | None, typer.Option(help="Weight of the retriever beside the reranker; 0: the reranker alone.")
    ] = None
    model: Annotated[str | None, typer.Option(help="The generator's model by name.")] = None
    run_id: Annotated[
        str | None, typer.Option("--run", help="Run to file it under. Default: one per day.")
    ] = None

    def options(self) -> dict[str, Any]:
        """Return the options of the SDK."""
        return {**vars(self), "filter": filter_of(self.filter or [])}
