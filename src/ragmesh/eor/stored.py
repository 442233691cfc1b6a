"""What a run of a study left behind: journals, and the records beside them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from ragmesh.eor.plan import Dataset
from ragmesh.shards import WHOLE, Shard, Stored, stem

KIND: Final = "eor"
"""Name of a study's journals."""


def changed(stored: Stored, datasets: list[Dataset], settings: Mapping[str, Any]) -> list[str]:
    """The data sets of which a run was asked other questions than these, or none, a line each."""
    found = stored.settings.get("datasets", {})
    return [
        f"{one.queries.path}: the run was not asked these questions as {one.name!r}"
        for one in datasets
        if found.get(one.name) != settings["datasets"][one.name]
    ]


def records_file(dataset: str, model: str, shard: Shard = WHOLE) -> str:
    """The file of a data set's and a model's records, whose name leads to no other folder."""
    return f"{stem(dataset)}.{stem(model)}{shard.suffix}.jsonl"


def records_paths(folder: Path, dataset: str, model: str, shard: Shard) -> list[Path]:
    """The files of a data set's and a model's records, of all shards that have written some."""
    paths = [folder / records_file(dataset, model, one) for one in shard.all]
    return [path for path in paths if path.exists()]
