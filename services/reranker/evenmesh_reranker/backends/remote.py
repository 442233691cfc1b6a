"""Rerank on a server of another project: TEI, Cohere, Jina, infinity, vLLM."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Final

from evenmesh.wire import deadline
from evenmesh.wire.errors import FailedPrecondition
from evenmesh_kit.remote.client import Checked, RemoteClient
from evenmesh_kit.remote.errors import MalformedReply, Rejected
from evenmesh_kit.remote.monitor import ServerMonitor, serves
from evenmesh_reranker.backends import rerank_api
from evenmesh_reranker.backends.rerank_api import RerankServer, Scale, WrongReplyError, WrongScaleError
from evenmesh_reranker.domain import Agent, Best, Fusion, Passage, Scores
from evenmesh_reranker.models.pairs import passage_text

_PATH: Final = f"/{rerank_api.PATH}"
_MOST_CHARACTERS: Final = 256
"""Longest name of a model that is passed on. Characters."""


class RemoteReranker:
    """Scores passages on servers that answer alike, the same for all agents. For one event loop.

    Passages of a request go in batches, several at a time; if one of these fails, the request does. The
    caller's deadline, less a margin, and its cancellation reach the server.

    Args:
        client: calls the servers; this object closes it.
        server: kind of the servers.
        model: model to ask for; empty: the only one.
        scale: what the servers' scores are.
        scale_setting: environment variable that says so, for errors.
        batch_size: most passages in a batch, [1, inf).
        batch_characters: most characters in a batch, the query counted with each passage; a longer passage
            goes alone. [1, inf).
        batch_settings: environment variables of both, for errors.
        fusion: how the scores are fused with a first stage's by default.
        check_s: time between two checks of the servers. Seconds, (0, inf).
        ready: called after each check with whether any server serves.
    """

    def __init__(
        self,
        client: RemoteClient,
        *,
        server: RerankServer,
        model: str = "",
        scale: Scale = "probability",
        scale_setting: str = "scale",
        batch_size: int = 32,
        batch_characters: int = 2**18,
        batch_settings: str = "the batch",
        fusion: Fusion | None = None,
        check_s: float = 5.0,
        ready: Callable[[bool], None] = lambda _: None,
    ) -> None:
        self._client = client
        self._server = server
        self._model = model
        self._scale = scale
        self._scale_setting = scale_setting
        self._batch_size = batch_size
        self._batch_characters = batch_characters
        self._batch_settings = batch_settings
        self._fusion = fusion or Fusion(0.0)
        self._ready = ready
        self._described = ""
        path = "/info" if server == "tei" else "/models"
        self._monitor = ServerMonitor(client, path, every_s=check_s, report=self._checked)

    async def start(self) -> None:
        """Check the servers, and begin to check them from time to time."""
        await self._monitor.check()
        self._monitor.start()

    async def close(self) -> None:
        """Stop checking and close every connection."""
        await self._monitor.close()
        await self._client.close()

    async def score(
        self, query: str, passages: Sequence[Passage], agent: Agent, *, best: Best | None = None
    ) -> Scores:
        """Return the score of each passage.

        Raises:
            MalformedReply: UNAVAILABLE, the server does not score each passage once, or two batches were
                scored by different models.
            FailedPrecondition: the server refuses the request (REMOTE_REJECTED), or its scores are of another
                scale than the settings say (REMOTE_WRONG_SCALE).
            MeshError: as of :meth:`evenmesh_kit.remote.client.RemoteClient.post`.
        """
        texts = [passage_text(one.title, one.text) for one in passages]
        try:
            async with asyncio.TaskGroup() as group:
                batches = [
                    group.create_task(self._batch(query, texts[begin:end]))
                    for begin, end in self._batches(query, texts)
                ]
        except BaseExceptionGroup as failed:
            raise failed.exceptions[0] from None
        replies = [batch.result() for batch in batches]
        versions = {self._version(reply.model) for reply in replies}
        if len(versions) > 1:
            raise MalformedReply("the model servers scored parts of one request by different models")
        values = tuple(value for reply in replies for value in reply.values)
        return Scores(values, versions.pop(), fusion=self._fusion)

    async def _batch(self, query: str, texts: Sequence[str]) -> rerank_api.Reply:
        body = rerank_api.request(self._server, self._model, self._scale, query, texts)
        try:
            reply = await self._client.post(_PATH, body, deadline=deadline.current())
            return rerank_api.read(self._server, reply, len(texts), self._scale)
        except Rejected as error:
            message = f"{error.message}; it gets as much in a request as {self._batch_settings} allow"
            raise FailedPrecondition(error.reason, message) from None
        except WrongReplyError as error:
            raise MalformedReply(f"the model server's reply has {error}") from None
        except WrongScaleError as error:
            message = f"the model server gives {error}: set {self._scale_setting} to what its scores are"
            raise FailedPrecondition("REMOTE_WRONG_SCALE", message) from None

    def _batches(self, query: str, texts: Sequence[str]) -> Iterator[tuple[int, int]]:
        """Yield where each batch begins and ends."""
        bounds, characters = [0], 0
        for place, text in enumerate(texts):
            size = len(query) + len(text)
            full = place - bounds[-1] == self._batch_size or characters + size > self._batch_characters
            if full and place > bounds[-1]:
                bounds.append(place)
                characters = 0
            characters += size
        return pairwise([*bounds, len(texts)])

    def _version(self, named: str) -> str:
        """Return the name of what scored: as the server says, else as the settings do."""
        name = self._described or named or self._model or self._server
        return "".join(filter(str.isprintable, name[:_MOST_CHARACTERS]))

    def _checked(self, checked: Sequence[Checked]) -> None:
        if self._server == "tei":
            names = {_described(one.reply) for one in checked if one.error is None}
            self._described = "|".join(sorted(names - {""}))
        self._ready(any(map(serves, checked)))


def _described(info: object) -> str:
    """Return model and revision of TEI's ``/info``; empty if it names none."""
    if not isinstance(info, dict) or not isinstance(info.get("model_id"), str):
        return ""
    revision = info.get("model_sha")
    return f"{info['model_id']}@{revision}" if isinstance(revision, str) else str(info["model_id"])
