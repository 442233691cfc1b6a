"""Requests to OpenAI-compatible servers, and their replies."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from evenmesh.wire.errors import MeshError
from evenmesh_generator.backends.openai.errors import is_too_long
from evenmesh_generator.backends.stops import stops
from evenmesh_generator.domain import Decoding
from evenmesh_kit.remote.client import parse_json
from evenmesh_kit.remote.errors import MalformedReply, Rejected, ServerUnavailable, from_status, said_in

MODELS_PATH: Final = "/models"
"""Lists the models."""

_STATUS_OF_TYPE: Final = {"validation": 422, "template_error": 422, "overloaded": 429}
"""Statuses of text-generation-inference, whose errors within a stream have a type alone: it rejects there."""

_MOST_NAME: Final = 200
"""Most characters of a name that a server gives its model or itself."""


@dataclass(frozen=True, slots=True)
class ListedModel:
    """A model that a server lists.

    ``owner``: what it names as the model's owner, often itself, such as ``vllm``; ``context_tokens``: what
    prompt and answer may have together; None where it does not say.
    """

    name: str
    owner: str
    context_tokens: int | None


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of an answer.

    ``finish``: why the model stopped, None before the end; ``log_probability``: of the piece's tokens
    together, None where the server gives none; ``usage``: tokens read, of these cached, and written, in the
    last pieces; ``model``: what the server calls the model; ``fingerprint``: of the server itself.
    """

    text: str
    finish: str | None
    log_probability: float | None
    usage: tuple[int, int, int] | None
    model: str
    fingerprint: str


@dataclass(frozen=True, slots=True)
class Interface:
    """One of the two interfaces to generate text.

    Attributes:
        chat: ``/chat/completions``, where the server puts the prompt into the model's chat template, rather
        than
            ``/completions``.
        model: the model's name at the server.
        further: further fields of each request.
    """

    chat: bool
    model: str
    further: Mapping[str, Any]

    @property
    def path(self) -> str:
        """Return the path to post to."""
        return "/chat/completions" if self.chat else "/completions"

    def generation(
        self, prompt: str, decoding: Decoding, *, log_probabilities: bool, usage: bool
    ) -> dict[str, Any]:
        """Return the request for a stream."""
        body = self._request(prompt, decoding) | {"stream": True}
        if usage:
            body["stream_options"] = {"include_usage": True}
        if log_probabilities:
            body |= {"logprobs": True} if self.chat else {"logprobs": 1}
        return body

    def judgement(self, prompt: str, top: int) -> dict[str, Any]:
        """Return the request for the ``top`` most probable first tokens of an answer."""
        body = self._request(prompt, Decoding(max_new_tokens=1))
        return body | ({"logprobs": True, "top_logprobs": top} if self.chat else {"logprobs": top})

    def chunk(self, event: str) -> Chunk:
        """Return a piece of a stream.

        Raises:
            MeshError: it is an error, or none that the interface has.
        """
        try:
            fields = _object(parse_json(event))
        except (ValueError, RecursionError):
            raise MalformedReply("the model server sent an event that is not JSON") from None
        if fields.get("error"):
            raise _error_of(fields, event)
        text, finish, log_probability = "", None, None
        for choice in _choices(fields):
            piece = _object(choice.get("delta") or {}).get("content") if self.chat else choice.get("text")
            if piece is not None and not isinstance(piece, str):
                raise MalformedReply("the model server sent an invalid piece of text")
            text += piece or ""
            finish = choice.get("finish_reason") or finish
            log_probability = _added(log_probability, self._log_probability(choice))
        if finish is not None and not isinstance(finish, str):
            raise MalformedReply("the model server sent an invalid reason to finish")
        return Chunk(
            text,
            finish,
            log_probability,
            _usage(fields),
            _short(fields.get("model")),
            _short(fields.get("system_fingerprint")),
        )

    def top(self, reply: Any) -> dict[str, float]:
        """Return the most probable first tokens of a judgement's reply with their log-probabilities in nats.

        Empty where the server gives none.

        Raises:
            MalformedReply: the reply is none that the interface has.
        """
        for choice in _choices(_object(reply)):
            given = choice.get("logprobs")
            if given is None:
                return {}
            if self.chat:
                tokens = _list(_object(given).get("content"))
                if not tokens:
                    return {}
                pairs = [
                    (one.get("token"), one.get("logprob"))
                    for one in map(_object, _list(_object(tokens[0]).get("top_logprobs")))
                ]
            else:
                tokens = _list(_object(given).get("top_logprobs"))
                pairs = list(_object(tokens[0]).items()) if tokens and tokens[0] else []
            return {_text(token): _number(value) for token, value in pairs}
        return {}

    def _request(self, prompt: str, decoding: Decoding) -> dict[str, Any]:
        asked = {"messages": [{"role": "user", "content": prompt}]} if self.chat else {"prompt": prompt}
        body = {
            **self.further,
            **stops(self.further, decoding),
            "model": self.model,
            **asked,
            "max_tokens": decoding.max_new_tokens,
            "temperature": decoding.temperature,
        }
        if decoding.temperature > 0:
            body["seed"] = decoding.seed
            if decoding.top_p < 1:  # text-generation-inference refuses 1
                body["top_p"] = decoding.top_p
        return body

    def _log_probability(self, choice: Mapping[str, Any]) -> float | None:
        given = choice.get("logprobs")
        if given is None:
            return None
        if self.chat:
            values = [_object(one).get("logprob") for one in _list(_object(given).get("content"))]
        else:
            values = _list(_object(given).get("token_logprobs"))
        return math.fsum(min(0.0, _number(value)) for value in values if value is not None)


def listed_models(reply: Any) -> list[ListedModel]:
    """Return the models of a list.

    Raises:
        MalformedReply: the reply is no list of models.
    """
    found = []
    for one in map(_object, _list(_object(reply).get("data"))):
        most = one.get("max_model_len")
        context = most if isinstance(most, int) and 16 <= most < 2**31 else None
        found.append(ListedModel(_text(one.get("id")), _short(one.get("owned_by")), context))
    return found


def _choices(fields: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the one choice that was asked for; none in a piece that only counts tokens."""
    return [one for one in map(_object, _list(fields.get("choices"))) if one.get("index") in (0, None)]


def _error_of(fields: Mapping[str, Any], event: str) -> MeshError:
    """Return the error that a server sends within a stream; without a status it is one of the server's."""
    inner = fields["error"]
    code = inner.get("code") if isinstance(inner, dict) else fields.get("code")
    status = _STATUS_OF_TYPE.get(str(fields.get("error_type")), 500)
    if isinstance(code, int) and 400 <= code < 600:
        status = code
    if status >= 500:
        rejected = Rejected(status, *said_in(event.encode(errors="replace")))
        if is_too_long(rejected):
            return rejected
        return ServerUnavailable("REMOTE_UNAVAILABLE", "the model server failed within a stream", rests=False)
    return from_status(
        status,
        event.encode(errors="replace"),
        None,
        key_setting="the key's setting",
        urls_setting="the servers' setting",
    )


def _usage(fields: Mapping[str, Any]) -> tuple[int, int, int] | None:
    usage = fields.get("usage")
    if usage is None:
        return None
    usage = _object(usage)
    details = usage.get("prompt_tokens_details")
    cached = _count(_object(details).get("cached_tokens")) if details is not None else 0
    read = _count(usage.get("prompt_tokens"))
    return read, min(read, cached), _count(usage.get("completion_tokens"))


def _added(one: float | None, other: float | None) -> float | None:
    return other if one is None else one if other is None else one + other


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise MalformedReply("the model server sent something else than an object")
    return value


def _list(value: Any) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise MalformedReply("the model server sent something else than a list")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise MalformedReply("the model server sent something else than a text")
    return value


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise MalformedReply("the model server sent a log-probability that is not a number")
    return float(value)


def _count(value: Any) -> int:
    if value is None:
        return 0
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**31:
        raise MalformedReply("the model server sent an invalid number of tokens")
    return value


def _short(value: Any) -> str:
    """Return a name of a server's; empty where it is none."""
    return value if isinstance(value, str) and len(value) <= _MOST_NAME and value.isprintable() else ""
