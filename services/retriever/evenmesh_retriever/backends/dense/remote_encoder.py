"""Encode on servers of other projects: TEI, or OpenAI's shape (vLLM, infinity, Ollama and others)."""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from evenmesh.wire import deadline
from evenmesh.wire.deadline import Deadline
from evenmesh.wire.errors import FailedPrecondition, MeshError, Unavailable
from evenmesh_kit.remote.client import Checked, RemoteClient
from evenmesh_kit.remote.errors import MalformedReply, Rejected
from evenmesh_kit.remote.monitor import ServerMonitor, serves
from evenmesh_retriever import cost
from evenmesh_retriever.backends.dense import embedding_api
from evenmesh_retriever.backends.dense.embedding_api import EmbeddingServer, WrongReplyError
from evenmesh_retriever.backends.dense.loop_thread import LoopThread, result
from evenmesh_retriever.backends.dense.prefixes import known_prefixes
from evenmesh_retriever.domain import VectorArray
from evenmesh_retriever.ports import CannotStart

_START_S: Final = 10.0
_USUAL_TOKENS: Final = 512
_AHEAD: Final = 4
"""Batches of one call that the servers have at a time."""
_MOST_DIMENSIONS: Final = 65_536
_MOST_CHARACTERS: Final = 256
"""Longest name of a model. Characters."""
_UNKNOWN: Final = "as the server computes"


@dataclass(frozen=True, slots=True)
class ServedModel:
    """What TEI says of its model at ``/info``.

    Attributes:
        name: its id.
        revision: of its weights; empty if unknown.
        precision: number type of its weights.
        max_tokens: tokens that it reads of a text, [1, inf).
        batch_size: most texts of a request, [1, inf).
    """

    name: str
    revision: str
    precision: str
    max_tokens: int
    batch_size: int

    @property
    def identity(self) -> tuple[str, str]:
        """What its vectors follow from."""
        return self.name, self.revision


class RemoteEncoder:
    """Vectors of length 1 from servers that answer alike. Its methods wait for them in the calling thread.

    Servers gather what many ask at a time into batches, so that a vector may differ in its last bits from one
    time to the next; equal passages of one call have equal vectors.

    Its fingerprint is made of the kind of server, the model's name, its revision where the server names one
    (TEI does), the prefixes and the dimension: who serves other weights under these must rename the model.

    Args:
        client: calls the servers; this object closes it.
        server: kind of the servers.
        model: model to ask for; empty: the only one, as of TEI.
        query_prefix: what queries begin with, besides what the server adds; None for what is known of the
            model (:mod:`evenmesh_retriever.backends.dense.prefixes`).
        passage_prefix: what passages begin with, likewise.
        batch_size: most texts in a request, [1, inf).
        batch_characters: most characters in a request; a longer text goes alone. [1, inf).
        batch_settings: environment variables of both, for errors.
        check_s: time between two checks of the servers. Seconds, (0, inf).
        ready: called after each check, in a thread of this object, with whether any server serves the model.
        setting: name of the setting of the servers' addresses, for errors.

    Raises:
        CannotStart: no server answers, or none serves an encoder; one line that names the setting.
    """

    def __init__(
        self,
        client: RemoteClient,
        *,
        server: EmbeddingServer,
        model: str = "",
        query_prefix: str | None = None,
        passage_prefix: str | None = None,
        batch_size: int = 32,
        batch_characters: int = 2**17,
        batch_settings: str = "the batch",
        check_s: float = 5.0,
        ready: Callable[[bool], None] = lambda _: None,
        setting: str = "urls",
    ) -> None:
        self._client = client
        self._server = server
        self._model = model
        self._batch_size = batch_size
        self._batch_characters = batch_characters
        self._batch_settings = batch_settings
        self._ready = ready
        self._changed = ""
        self._named = ""
        self._served: ServedModel | None = None
        self.device = ", ".join(f"{server}://{one.name}" for one in client.endpoints)
        self.dimension = 0
        path = "/info" if server == "tei" else "/models"
        self._loop = LoopThread("retriever-encoder")
        self._monitor = ServerMonitor(client, path, every_s=check_s, report=self._follow)
        try:
            self._open(setting, query_prefix, passage_prefix)
        except BaseException:
            self.close()
            raise

    def _open(self, setting: str, query_prefix: str | None, passage_prefix: str | None) -> None:
        try:
            if self._server == "tei":
                ends = Deadline.after(_START_S)
                checked = self._loop.run(self._client.check("/info", deadline=ends))
                self._served = _agreed(checked)
                self._batch_size = min(self._batch_size, self._served.batch_size)
            reply = self._loop.run(self._post(["dimension"], Deadline.after(_START_S)))
            first, self._named = self._read(reply, 1)
        except MeshError as error:
            urls = ",".join(one.url for one in self._client.endpoints)
            raise CannotStart(f"{setting}={urls}: {error.message}") from None
        served = self._served
        self.name = served.name if served is not None else self._model
        self.precision = served.precision if served is not None else _UNKNOWN
        self.max_tokens = served.max_tokens if served is not None else _USUAL_TOKENS
        known = known_prefixes(self.name)
        self._prefixes = (
            known[0] if query_prefix is None else query_prefix,
            known[1] if passage_prefix is None else passage_prefix,
        )
        self.dimension = first.shape[1]
        revision = served.revision if served is not None else ""
        described = [self._server, self.name, revision, self._prefixes, self.dimension]
        digest = hashlib.sha256(json.dumps(described).encode()).hexdigest()
        self.fingerprint = f"{self._server}-{digest[:16]}"
        self._loop.run(self._watch())

    def close(self) -> None:
        """End the calls and checks that run, every connection and the thread."""
        self._loop.close(self._client.close)

    def count_tokens(self, texts: Sequence[str]) -> int:
        """Return about the tokens that the model reads of passages; the server does not say."""
        return cost.encoding([len(text.encode()) for text in texts], self.max_tokens)

    def encode_query(self, text: str) -> VectorArray:
        """Return the vector of one query, ``[dimension]``.

        Raises:
            MalformedReply: UNAVAILABLE, the server's reply is not one finite vector for each text.
            Unavailable: ENCODER_CHANGED, it has another model or dimension than when this object was made.
            FailedPrecondition: REMOTE_REJECTED, the server refuses the request.
            MeshError: as of :meth:`evenmesh_kit.remote.client.RemoteClient.post`.
        """
        reply = self._loop.run(self._post([self._prefixes[0] + text], deadline.current()))
        vector: VectorArray = self._checked(reply, 1)[0]
        return vector

    def encode_passages(self, texts: Sequence[str], progress: Callable[[int], None]) -> VectorArray:
        """Return the vectors of passages, ``[len(texts), dimension]``; equal texts are encoded once.

        Raises:
            MeshError: as :meth:`encode_query`.
        """
        found: dict[str, VectorArray] = {}
        running: deque[tuple[list[str], Future[Any]]] = deque()
        batches = self._batches(sorted(set(texts), key=lambda text: (-len(text), text)))
        try:
            while True:
                while len(running) < _AHEAD and (batch := next(batches, None)):
                    prefixed = [self._prefixes[1] + text for text in batch]
                    post = self._post(prefixed, deadline.current())
                    running.append((batch, self._loop.submit(post)))
                if not running:
                    break
                batch, future = running.popleft()
                vectors = self._checked(result(future), len(batch))
                found.update(zip(batch, vectors, strict=True))
                progress(len(found))
        finally:
            for _, future in running:
                future.cancel()
        return np.array([found[text] for text in texts], dtype=np.float32).reshape(-1, self.dimension)

    def _batches(self, texts: Sequence[str]) -> Iterator[list[str]]:
        batch: list[str] = []
        characters = 0
        for text in texts:
            size = len(self._prefixes[1]) + len(text)
            if batch and (len(batch) == self._batch_size or characters + size > self._batch_characters):
                yield batch
                batch, characters = [], 0
            batch.append(text)
            characters += size
        if batch:
            yield batch

    async def _post(self, texts: Sequence[str], ends: Deadline) -> Any:
        """Return the server's reply; it is read in the thread that waits for it."""
        if self._changed:
            raise self._other(self._changed)
        body = embedding_api.request(self._server, self._model, texts)
        try:
            return await self._client.post(f"/{embedding_api.path(self._server)}", body, deadline=ends)
        except Rejected as error:
            message = f"{error.message}; it gets as much in a request as {self._batch_settings} allow"
            raise FailedPrecondition(error.reason, message) from None

    def _read(self, reply: Any, count: int) -> tuple[VectorArray, str]:
        try:
            vectors, named = embedding_api.read(self._server, reply, count)
        except WrongReplyError as error:
            raise MalformedReply(f"the model server's reply has {error}") from None
        if vectors.shape[1] > _MOST_DIMENSIONS:
            raise MalformedReply(f"the model server's vectors have more than {_MOST_DIMENSIONS} dimensions")
        return vectors, named[:_MOST_CHARACTERS]

    def _checked(self, reply: Any, count: int) -> VectorArray:
        """Return the vectors of a reply, of the same model as at the start."""
        vectors, named = self._read(reply, count)
        if vectors.shape[1] != self.dimension:
            raise self._other(f"gives vectors of {vectors.shape[1]} dimensions, not of {self.dimension}")
        if named != self._named:
            raise self._other(f"answers with model {named!r}, not with {self._named!r}")
        return vectors

    def _other(self, what: str) -> Unavailable:
        return Unavailable(
            "ENCODER_CHANGED",
            f"the model server {what} as when this service started: start it again, or serve that model",
        )

    async def _watch(self) -> None:
        self._monitor.start()

    def _follow(self, checked: Sequence[Checked]) -> None:
        if self._served is not None:
            served = [found for one in checked if (found := _read(one.reply)) is not None]
            other = next((one for one in served if one.identity != self._served.identity), None)
            self._changed = "" if other is None else f"serves {_shown(other)}, not {_shown(self._served)}"
        self._ready(not self._changed and any(map(serves, checked)))


def _agreed(checked: Sequence[Checked]) -> ServedModel:
    """Return the one model that all servers serve that answer.

    Raises:
        MeshError: none answers, or with another kind of model, or they serve several.
    """
    answered = [one for one in checked if one.error is None]
    if not answered:
        raise next(one.error for one in checked if one.error is not None)
    served = [_read(one.reply) for one in answered]
    models = [one for one in served if one is not None]
    if len(models) < len(served):
        raise MalformedReply("a model server's /info names no embedding model of TEI")
    if len({one.identity for one in models}) > 1:
        several = ", ".join(sorted({_shown(one) for one in models}))
        raise FailedPrecondition("REMOTE_DIFFERENT", f"the model servers serve different models: {several}")
    return replace(models[0], batch_size=min(one.batch_size for one in models))


def _read(info: Any) -> ServedModel | None:
    """Return the embedding model of TEI's ``/info``; None if it names none."""
    if not isinstance(info, dict):
        return None
    kind, name, revision = info.get("model_type"), info.get("model_id"), info.get("model_sha")
    kinds = kind if isinstance(kind, dict) else {}
    named = _word(name)
    if not named or "embedding" not in kinds:
        return None
    precision = info.get("model_dtype")
    return ServedModel(
        name=named,
        revision=_word(revision) or "",
        precision=_word(precision) or _UNKNOWN,
        max_tokens=_positive(info.get("max_input_length"), _USUAL_TOKENS),
        batch_size=_positive(info.get("max_client_batch_size"), 32),
    )


def _word(value: object) -> str | None:
    """Return a short name that may be shown; None if it is none."""
    fits = isinstance(value, str) and value.isprintable() and len(value) <= _MOST_CHARACTERS
    return value if isinstance(value, str) and fits else None


def _positive(value: object, default: int) -> int:
    return value if type(value) is int and value > 0 else default


def _shown(model: ServedModel) -> str:
    return f"{model.name}@{model.revision}" if model.revision else model.name
