"""What a run's models were trained on of what it asks and shows."""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from evenmesh_lab.files import FileError
from evenmesh_lab.files.trained_texts import TRAINED_TEXTS, TrainedTexts, find_trained_texts
from evenmesh_lab.studies.known_models import trained
from evenmesh_lab.studies.overlap import Overlap, measure

if TYPE_CHECKING:
    from evenmesh import Client

K = TypeVar("K", bound=Hashable)

MOST_PASSAGES: Final = 100_000
"""Most passages of a collection that are compared."""


def read_given(options: Sequence[str] | None, problems: list[str]) -> dict[str, TrainedTexts]:
    """Return what ``--trained-on NAME=FOLDER`` says by model; add what is wrong with it to ``problems``."""
    found: dict[str, TrainedTexts] = {}
    for option in options or ():
        name, given, folder = option.partition("=")
        if not given or not name or not folder:
            problems.append(f"--trained-on {option}: allowed: MODEL=FOLDER, such as mine=runs/one/model")
            continue
        try:
            texts = find_trained_texts(Path(folder))
        except FileError as error:
            problems.append(f"--trained-on {name}: {error}")
            continue
        if texts is None:
            problems.append(f"--trained-on {name}: {folder} has no {TRAINED_TEXTS}; evenmesh train writes it")
        else:
            found[name] = texts
    return found


def collection_texts(client: "Client", collection: str | None) -> list[str] | None:
    """Return the texts of a collection's passages.

    Returns:
        None where no collection is named, or it has more than :data:`MOST_PASSAGES`.

    Raises:
        MeshError: the collection cannot be read.
    """
    if collection is None:
        return None
    found: list[str] = []
    for passage in client.passages(collection):
        if len(found) == MOST_PASSAGES:
            return None
        found.append(passage.text)
    return found


def context_texts(contexts: Iterable[str]) -> list[str]:
    """Return the passages of contexts as records have them: title, line, text, and a blank line between.

    A passage with line breaks of its own is cut into other texts, and so is not found.
    """
    found: dict[str, None] = {}
    for context in contexts:
        for part in context.split("\n\n"):
            first, line, rest = part.partition("\n")
            found[rest if line else first] = None
    return list(found)


def overlap(
    facts: Mapping[str, str],
    questions: Mapping[K, Sequence[str]],
    *,
    given: Mapping[str, TrainedTexts] | None = None,
    passages: Iterable[str] | None = None,
) -> Overlap[K]:
    """Return the overlap of a run's questions and passages with the training of its models."""
    return measure(questions, trained(facts, given), passages)
