"""``evenmesh fetch-models``: files of models from the hub or a bucket, before a service starts."""

from pathlib import Path
from typing import Annotated

import typer

from evenmesh.commands.failure import CommandError
from evenmesh.commands.screen import Screen


def fetch_models(
    models: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME=SOURCE]...",
            envvar="EVENMESH_FETCH_MODELS",
            help="Models by the names of their folders: a repository of the hub (google/flan-t5-base, with "
            "@REVISION for one of its revisions), or an address (s3://bucket/folder).",
        ),
    ] = None,
    to: Annotated[Path, typer.Option("--to", help="Folder that gets a folder for each model.")] = Path(
        "models"
    ),
) -> None:
    """Fetch models from the hub or a bucket into a folder.

    Their files are weights (safetensors), configuration and tokenizer. A folder that exists is not fetched
    again. A token for the hub is read from HF_TOKEN, credentials of a bucket from the variables of its own
    tools. Name the folders in the settings of services.
    """
    from evenmesh_documents.model_files import FetchError, NamedModel, fetch_all

    screen = Screen()

    def say(model: NamedModel, fetched: bool) -> None:
        screen.line(f"{model.name}: {'fetched' if fetched else 'is there'}")

    try:
        fetch_all(models or [], to, say)
    except FetchError as error:
        raise CommandError(str(error)) from None
