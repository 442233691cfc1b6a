"""Open data sets by ir_datasets (MacAvaney et al. 2021) and Hugging Face's datasets (Lhoest et al. 2021).

Both stream. Neither runs code of a data set.
"""

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Final, Literal, Protocol

from evenmesh_documents.data_sets.address import HUGGING_FACE, IR_DATASETS, DataSetAddress

Row = Mapping[str, Any]
"""A document, query or judgement, by the names of its columns."""

Part = Literal["docs", "queries", "qrels"]

TEXT: Final = ("text", "passage", "contents", "content", "body", "document", "context")
"""Columns that texts of documents usually have."""

_IDS: Final = {"docs": "doc_id", "queries": "query_id"}


class DataSetError(ValueError):
    """Raised for a data set that cannot be opened or read; the message says why, without its name."""


class DataSet(Protocol):
    """A data set that is open."""

    def count(self, part: Part) -> int | None:
        """Return the number of rows of a part; None where only reading it tells."""

    def has(self, part: Part) -> bool:
        """Return whether there is such a part."""

    def rows(self, part: Part) -> Iterator[Row]:
        """Yield the rows of a part. Raises DataSetError."""


def opened(address: DataSetAddress) -> DataSet:
    """Open a data set.

    Raises:
        DataSetError: its library is not installed or does not know it, or it cannot be reached.
    """
    try:
        return _HuggingFace(address) if address.kind == HUGGING_FACE else _IrDatasets(address.name)
    except ModuleNotFoundError as exc:
        package = "datasets" if address.kind == HUGGING_FACE else IR_DATASETS
        raise DataSetError(
            f"needs {exc.name or package}, which is not installed: pip install {package}"
        ) from exc


class _IrDatasets:
    def __init__(self, name: str) -> None:
        import ir_datasets

        try:
            self._data_set: Any = ir_datasets.load(name)
        except KeyError as exc:
            raise DataSetError("is not known to ir_datasets: see https://ir-datasets.com") from exc
        except Exception as exc:  # names that are patterns are resolved by code of their own
            raise DataSetError(f"cannot be opened ({type(exc).__name__}: {exc})") from exc

    def has(self, part: Part) -> bool:
        return bool(getattr(self._data_set, f"has_{part}")())

    def count(self, part: Part) -> int | None:
        # Others count by downloading and reading everything.
        found = (self._data_set.metadata() or {}).get(part, {}).get("count") if self.has(part) else 0
        return found if isinstance(found, int) else None

    def rows(self, part: Part) -> Iterator[Row]:
        if not self.has(part):
            raise DataSetError(f"has no {part}")
        try:
            for one in getattr(self._data_set, f"{part}_iter")():
                row = one._asdict()
                if (id_of := _IDS.get(part)) is not None:
                    row["id"] = row.pop(id_of)
                if not row.keys() & TEXT and hasattr(one, "default_text"):
                    row["text"] = one.default_text()
                    row.pop("title", None)  # it is in that text
                yield row
        except Exception as exc:  # of a download or of a format: none of them means "no more"
            raise DataSetError(f"cannot be read ({type(exc).__name__}: {_first_line(exc)})") from exc


class _HuggingFace:
    def __init__(self, address: DataSetAddress) -> None:
        import datasets

        options = {"name": address.options.get("config"), "revision": address.options.get("revision")}
        split = address.options.get("split")
        try:
            found: Any = datasets.load_dataset(address.name, split=split, streaming=True, **options)
        except ValueError as exc:  # of a split or a configuration that it does not have
            raise DataSetError(f"cannot be opened ({_first_line(exc)})") from exc
        except Exception as exc:  # datasets has no base of its errors
            raise DataSetError(
                f"cannot be opened ({type(exc).__name__}: {_first_line(exc)}); a copy on this machine is "
                "named by its folder: hf:/PATH"
            ) from exc
        if isinstance(found, dict):
            if len(found) > 1:
                raise DataSetError(f"has several splits: add ?split= and one of {', '.join(found)}")
            (found,) = found.values()
        self._data_set = found

    def has(self, part: Part) -> bool:
        return True

    def count(self, part: Part) -> int | None:
        splits = self._data_set.info.splits or {}
        found = splits.get(str(self._data_set.split))
        return found.num_examples if found is not None else None

    def rows(self, part: Part) -> Iterator[Row]:
        try:
            yield from self._data_set
        except Exception as exc:  # as above
            raise DataSetError(f"cannot be read ({type(exc).__name__}: {_first_line(exc)})") from exc


def bounded(data_set: DataSet, part: Part, most: int) -> Iterator[Row]:
    """Yield the rows of a part.

    Raises:
        DataSetError: there are more than ``most``, or they cannot be read.
    """
    count = data_set.count(part)
    if count is not None and count > most:
        raise DataSetError(f"has {count:,} {part}, at most {most:,} are read")
    rows = data_set.rows(part)
    yield from islice(rows, most)
    if next(rows, None) is not None:
        raise DataSetError(f"has more than {most:,} {part}")


def _first_line(exc: Exception) -> str:
    return str(exc).partition("\n")[0][:300]
