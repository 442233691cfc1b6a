"""Answer equivalence by a server: a classifier of text-embeddings-inference, or a chat model."""

import asyncio
import atexit
import math
from collections.abc import Sequence
from typing import Any, Final, Literal

import numpy as np

from evenmesh.wire.deadline import Deadline
from evenmesh_core.arrays import FloatArray
from evenmesh_core.errors import InvalidInput
from evenmesh_kit.remote.client import RemoteClient
from evenmesh_kit.remote.errors import MalformedReply
from evenmesh_kit.remote.options import RemoteOptions
from evenmesh_lab.similarities.equivalence import Compared
from evenmesh_lab.similarities.similarity import Check, unchecked

EquivalenceServer = Literal["tei", "openai"]
"""``tei``: POST base/predict; ``openai``: POST base/chat/completions."""

MOST_CHARACTERS: Final = 4_000
"""Characters of a question, a reference or a candidate that are sent; the rest is cut."""
_BATCH: Final = 32
"""Pairs of a request to a classifier, as many as TEI takes by default."""
_IN_FLIGHT: Final = 8
_EQUIVALENT: Final = frozenset({"label_1", "equivalent", "yes", "true", "1"})
"""Names of the label that counts, in lower case."""
_TOP: Final = 20

_PROMPT: Final = """You compare a candidate answer with a reference answer to the same question.
Question: {question}
Reference answer: {reference}
Candidate answer: {candidate}
Does the candidate answer the question as well as the reference, saying the same? Answer yes or no."""


class ServedEquivalence:
    """A model of answer equivalence behind a server; for one thread, with an event loop of its own.

    A classifier reads the candidate as the first text, and the reference, the separator and the question as
    the second, as BEM was trained. Of a chat model the probability is that of "yes" beside "no" among the
    most probable first tokens.

    Args:
        options: where the servers are, and how they are called.
        server: what they speak.
        model: name at the server; required for ``openai``.
        separator: between reference and question for a classifier, the separator of its tokenizer.
        timeout_s: of one request. Seconds, (0, 3600].

    Raises:
        InvalidInput: no model for ``openai``, or a value out of range.
        RemoteOptionError: a file of the options cannot be used.
    """

    def __init__(
        self,
        options: RemoteOptions,
        server: EquivalenceServer,
        *,
        model: str = "",
        separator: str = "[SEP]",
        timeout_s: float = 60.0,
    ) -> None:
        if server == "openai" and not model:
            raise InvalidInput("model", model, "the model's name at the server")
        if not 0 < timeout_s <= 3600:
            raise InvalidInput("timeout_s", timeout_s, "above 0, at most 3600")
        self._options, self._server, self._model = options, server, model
        self._separator, self._timeout_s = separator, timeout_s
        self._loop: asyncio.Runner | None = None
        self._client: RemoteClient | None = None

    def probabilities(self, compared: Sequence[Compared], check: Check = unchecked) -> FloatArray:
        """Return the probability of each, a vector [P] in [0, 1]; ``check`` is called before each step.

        Raises:
            MeshError: the server cannot be reached, refuses, or replies with something else.
        """
        if self._loop is None:
            self._loop = asyncio.Runner()
            atexit.register(self.close)
        return np.array(self._loop.run(self._judged(compared, check)), dtype=np.float64)

    def close(self) -> None:
        """Close the connections and the event loop."""
        if self._loop is not None:
            if self._client is not None:
                self._loop.run(self._client.close())
            self._loop.close()
        self._loop, self._client = None, None

    async def _judged(self, compared: Sequence[Compared], check: Check) -> list[float]:
        if self._client is None:
            self._client = RemoteClient(self._options)
        step = _BATCH if self._server == "tei" else 1
        groups = [compared[at : at + step] for at in range(0, len(compared), step)]
        found: list[float] = []
        for at in range(0, len(groups), _IN_FLIGHT):
            check()
            calls = [self._call(self._client, one) for one in groups[at : at + _IN_FLIGHT]]
            for values in await asyncio.gather(*calls):
                found += values
        return found

    async def _call(self, client: RemoteClient, compared: Sequence[Compared]) -> list[float]:
        deadline = Deadline.after(self._timeout_s)
        if self._server == "tei":
            body: dict[str, Any] = {"inputs": [self._pair(one) for one in compared], "truncate": True}
            return classified(await client.post("/predict", body, deadline=deadline), len(compared))
        (one,) = compared
        body = {
            "model": self._model,
            "messages": [{"role": "user", "content": _PROMPT.format(**_cut(one))}],
            "temperature": 0,
            "max_tokens": 1,
            "logprobs": True,
            "top_logprobs": _TOP,
        }
        return [affirmed(await client.post("/chat/completions", body, deadline=deadline))]

    def _pair(self, one: Compared) -> list[str]:
        cut = _cut(one)
        return [cut["candidate"], f"{cut['reference']} {self._separator} {cut['question']}"]


def classified(reply: object, count: int) -> list[float]:
    """Return the probabilities of TEI's reply: for each pair a list of labels with scores.

    Raises:
        MalformedReply: it is something else, or which label counts is not clear.
    """
    if not isinstance(reply, list) or len(reply) != count:
        raise MalformedReply(f"the classifier's reply is not a list of {count} results")
    return [_of_labels(one) for one in reply]


def affirmed(reply: object) -> float:
    """Return P(yes) beside P(no) of a chat reply's first token.

    Raises:
        MalformedReply: it has no probabilities of tokens, or neither word is among the most probable.
    """
    try:
        (choice,) = reply["choices"]  # type: ignore[index]
        tops = choice["logprobs"]["content"][0]["top_logprobs"]
        shares = {"yes": 0.0, "no": 0.0}
        for one in tops:
            word = str(one["token"]).strip().strip(".!,\"'").casefold()
            if word in shares:
                shares[word] += math.exp(_number(one["logprob"]))
    except (KeyError, IndexError, TypeError, ValueError, OverflowError):
        raise MalformedReply(
            "the chat reply has no choices[0].logprobs.content[0].top_logprobs: the server must give them"
        ) from None
    total = shares["yes"] + shares["no"]
    if not 0 < total < math.inf:
        raise MalformedReply("neither yes nor no is among the chat model's most probable first tokens")
    return shares["yes"] / total


def _of_labels(result: object) -> float:
    if not isinstance(result, list) or not 1 <= len(result) <= 2:
        raise MalformedReply("an answer-equivalence classifier has one label or two")
    scores: dict[str, float] = {}
    try:
        for one in result:
            scores[str(one["label"]).casefold()] = _number(one["score"])
    except (KeyError, TypeError, ValueError):
        raise MalformedReply("a result of the classifier has no label or no score") from None
    named = list(scores) if len(scores) == 1 else [name for name in scores if name in _EQUIVALENT]
    if len(named) != 1:
        raise MalformedReply(
            f"none or several of the labels {', '.join(scores)} mean equivalent; one must be named "
            f"{', '.join(sorted(_EQUIVALENT))}"
        )
    value = scores[named[0]]
    if not 0 <= value <= 1:
        raise MalformedReply(f"a score of the classifier is {value:g}, outside [0, 1]")
    return value


def _number(given: object) -> float:
    if isinstance(given, bool) or not isinstance(given, int | float) or math.isnan(given):
        raise TypeError
    return float(given)


def _cut(one: Compared) -> dict[str, str]:
    texts = {"question": one.question, "reference": one.reference, "candidate": one.candidate}
    return {name: text[:MOST_CHARACTERS] for name, text in texts.items()}
