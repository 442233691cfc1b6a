"""Call Milvus: with a deadline, strongly consistent, and with errors translated to ours."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import grpc
from pymilvus import MilvusClient
from pymilvus.exceptions import ErrorCode, MilvusException

from evenmesh.wire.errors import DeadlineExceeded, FailedPrecondition, MeshError, NotFound, Unavailable
from evenmesh_retriever.backends.milvus.expressions import after, at_least
from evenmesh_retriever.ports import CannotStart

MOST: Final = 16_384
"""Most rows that Milvus gives at a time."""

_CONNECT_FAILED: Final = 2
_NOT_LOADED: Final = 101
_STRONG: Final = "Strong"
T = TypeVar("T")
Row = Mapping[str, Any]


class Connection:
    """A connection to one Milvus; its methods block, and may be called from several threads.

    Args:
        uri: where it is, such as ``http://127.0.0.1:19530``; a database of it as the path.
        token: what it asks for; empty for nothing.
        timeout_s: how long a call may take. Seconds, (0, inf).

    Raises:
        MeshError: it does not answer.
    """

    def __init__(self, uri: str, token: str = "", timeout_s: float = 10.0) -> None:
        # It logs every error that it raises with its stack, values of requests included.
        logging.getLogger("pymilvus").setLevel(logging.CRITICAL)
        self._timeout_s = timeout_s
        self._client: MilvusClient = self._translated(
            lambda: MilvusClient(uri, token=token, timeout=timeout_s, dedicated=True)
        )
        self.version = str(self._call(self._client.get_server_version))

    def close(self) -> None:
        """Close it."""
        self._client.close()

    def has(self, place: str) -> bool:
        """Return whether there is a collection."""
        return bool(self._call(self._client.has_collection, place))

    def create(self, place: str, schema: Any, indexes: Any) -> None:
        """Make a collection and load it, ready to be searched."""
        self._call(self._client.create_collection, place, schema=schema, consistency_level=_STRONG)
        # There is nothing to index yet, and pymilvus would wait half a second for each index.
        self._call(self._client.create_index, place, indexes, sync=False)
        self._call(self._client.load_collection, place)

    def drop(self, place: str) -> None:
        """Remove a collection; one that is not there is gone already."""
        self._call(self._client.drop_collection, place)

    def upsert(self, place: str, rows: Sequence[Row]) -> None:
        """Add or replaces rows by primary key."""
        self._call(self._client.upsert, place, list(rows))

    def delete(self, place: str, where: str) -> None:
        """Remove rows."""
        self._call(self._client.delete, place, filter=where)

    def query(self, place: str, where: str, fields: Sequence[str], most: int = MOST) -> list[Row]:
        """Return up to ``most`` rows that meet a condition, in any order."""
        return list(
            self._read(
                self._client.query,
                place,
                filter=where,
                output_fields=list(fields),
                limit=most,
                consistency_level=_STRONG,
            )
        )

    def first(self, place: str, key: str, where: str, fields: Sequence[str], most: int) -> list[Row]:
        """Return the first ``most`` rows by ascending primary key ``key``."""
        found = self._read(
            self._client.query,
            place,
            filter=where,
            output_fields=list(fields),
            limit=most,
            consistency_level=_STRONG,
            # What pymilvus's own iterator sends to get rows in the order of their keys. The iterator itself
            # does not do for keys that hold a quote.
            iterator="True",
            reduce_stop_for_best="True",
        )
        return sorted(found, key=lambda row: str(row[key]))

    def pages(
        self, place: str, key: str, fields: Sequence[str], size: int, prefix: str = ""
    ) -> Iterator[list[Row]]:
        """Yield rows whose ``key`` begins with ``prefix``, by ascending key, at most ``size`` at a time."""
        where = at_least(key, prefix) if prefix else ""
        while page := self.first(place, key, where, fields, size):
            wanted = [row for row in page if str(row[key]).startswith(prefix)]
            if wanted:
                yield wanted
            if len(wanted) < len(page):
                return
            where = after(key, page[-1][key])

    def search(
        self,
        place: str,
        field: str,
        query: Any,
        where: str,
        fields: Sequence[str],
        most: int,
        parameters: Mapping[str, Any],
    ) -> list[Row]:
        """Return up to ``most`` rows nearest to a vector or a text, best first, each with ``distance``."""
        (hits,) = self._read(
            self._client.search,
            place,
            data=[query],
            anns_field=field,
            filter=where,
            limit=most,
            output_fields=list(fields),
            search_params={"params": dict(parameters)},
            consistency_level=_STRONG,
        )
        return [{**hit["entity"], "distance": hit["distance"]} for hit in hits]

    def _read(self, method: Callable[..., T], place: str, **kwargs: Any) -> T:
        try:
            return self._call(method, place, **kwargs)
        except MilvusException as error:
            if error.code != _NOT_LOADED:
                raise
        # Milvus Lite has forgotten what was loaded when it starts again.
        self._call(self._client.load_collection, place)
        return self._call(method, place, **kwargs)

    def _call(self, method: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        return self._translated(lambda: method(*args, timeout=self._timeout_s, **kwargs))

    def _translated(self, call: Callable[[], T]) -> T:
        try:
            return call()
        except grpc.RpcError as error:
            translated = self._error(error.code())
            if translated is None:
                raise
            raise translated from error
        except MilvusException as error:
            translated = self._error(error.code)
            if translated is None:
                raise
            raise translated from error

    def _error(self, code: object) -> MeshError | None:
        """Return what an error is to our callers; None for what none of them has brought about."""
        match code:
            case grpc.StatusCode.DEADLINE_EXCEEDED:
                return DeadlineExceeded(f"Milvus did not answer within {self._timeout_s:g} s")
            case grpc.StatusCode.UNAVAILABLE | grpc.StatusCode.CANCELLED:
                return Unavailable("MILVUS_UNAVAILABLE", "Milvus cannot be reached")
            case grpc.StatusCode.UNAUTHENTICATED | grpc.StatusCode.PERMISSION_DENIED:
                return FailedPrecondition("MILVUS_REFUSED", "Milvus does not take this server's token")
            case int() if code == _CONNECT_FAILED:
                return Unavailable("MILVUS_UNAVAILABLE", "Milvus cannot be reached")
            case int() if code == ErrorCode.COLLECTION_NOT_FOUND:
                return NotFound("collection", "the collection is no longer in Milvus")
            case int() if code in (ErrorCode.RATE_LIMIT, ErrorCode.FORCE_DENY):
                return Unavailable("MILVUS_LIMIT", "Milvus takes no more requests now")
        return None


def connect(
    uri: str, token_file: Path | None, timeout_s: float, setting: str, token_setting: str
) -> Connection:
    """Return a connection, for a server that starts.

    Raises:
        CannotStart: there is no Milvus there, or its token cannot be read; names the setting.
    """
    try:
        token = token_file.read_text(encoding="utf-8").strip() if token_file is not None else ""
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "is not text"
        raise CannotStart(f"{token_setting}={str(token_file)!r}: {why}") from None
    try:
        return Connection(uri, token, timeout_s)
    except MeshError as error:
        raise CannotStart(f"{setting}={uri!r}: {error.message}") from None
