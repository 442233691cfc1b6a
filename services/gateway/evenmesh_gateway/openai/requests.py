"""What clients of OpenAI's API send: checked, and read as an ask."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any, Final, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StrictBool, ValidationError, model_validator

from evenmesh.common.v1.common_pb2 import Sampling
from evenmesh.generator.v1.generator_service_pb2 import Decoding, Turn
from evenmesh.orchestrator.v1 import orchestrator_service_pb2 as pb
from evenmesh.wire.checks import MAX_STOP
from evenmesh.wire.errors import InvalidField, MeshError, restored
from evenmesh_gateway.json_messages import from_value
from evenmesh_gateway.openai import pipelines

MAX_MESSAGES: Final = 201
"""Most messages of a chat: the question, and 100 turns before it."""
_MAX_NEW_TOKENS: Final = 4_096
_TYPES: Final = frozenset({"str", "float", "int", "bool"})
"""Names of types, which pydantic adds to the place of a value that may be of several."""
_LONGEST: Final = ("max_completion_tokens", "max_tokens", "max_output_tokens")
"""What the longest answer is called; of two the first is it."""
_OF_ANOTHER_TYPE: Final = frozenset({"string_type", "list_type"})
_MAX_SEED: Final = 2**63 - 1
_NEUTRAL: Final[Mapping[str, tuple[Any, ...]]] = {
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "modalities": (["text"],),
    "n": (1,),
    "response_format": ({"type": "text"},),
    "text": ({"format": {"type": "text"}},),
    "tool_choice": ("none", "auto"),
    "top_logprobs": (0,),
    "truncation": ("disabled",),
}
"""Values with which a parameter asks for nothing that is not done anyway."""
_IGNORED: Final = frozenset(
    {
        "instructions",
        "max_tool_calls",
        "metadata",
        "parallel_tool_calls",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "reasoning",
        "reasoning_effort",
        "safety_identifier",
        "service_tier",
        "store",
        "truncation",
        "user",
        "verbosity",
    }
)
"""Parameters without an effect here, which a reply lists; any other is refused, as it would be missed."""
_ASKS_BY_BEING_THERE: Final = frozenset({"web_search_options"})
"""Parameters that ask for something even when they are empty."""
_INCLUDED: Final = frozenset(
    {
        "code_interpreter_call.outputs",
        "file_search_call.results",
        "reasoning.encrypted_content",
        "web_search_call.action.sources",
        "web_search_call.results",
    }
)
"""What a response may be asked to include of its reasoning and its tools, of which none has any here."""
_NO_TOOLS: Final = "is not supported here: no model calls tools; agents call the mesh as a tool, by MCP"
_NOT_STORED: Final = "is not supported here: nothing is stored, so send the earlier messages, too"
_PLAIN: Final = "is not supported here: answers are plain text, so leave it out"
_INSTEAD: Final[Mapping[str, str]] = {
    "conversation": _NOT_STORED,
    "function_call": _NO_TOOLS,
    "functions": _NO_TOOLS,
    "n": "must be 1 here: evenmesh.sampling.num_rankings asks for several rankings, each with its answer",
    "previous_response_id": _NOT_STORED,
    "response_format": _PLAIN,
    "text": _PLAIN,
    "tool_choice": _NO_TOOLS,
    "tools": _NO_TOOLS,
}
"""What to do instead of using parameters that clients use most."""
UNKNOWN: Final = "is not supported here: leave it out"
"""What is wrong with a parameter that is not known."""
_OF_REPLIES: Final = frozenset({"annotations", "id", "refusal", "status", "type"})
"""Members of messages that clients take from replies; they ask for nothing."""

T = TypeVar("T", bound=BaseModel)


class Part(BaseModel):
    """A part of a message: text."""

    model_config = ConfigDict(extra="allow")

    type: Literal["text", "input_text", "output_text"] = "text"
    text: str


class ChatMessage(BaseModel):
    """A message of a chat."""

    model_config = ConfigDict(extra="allow")

    role: Literal["system", "developer", "user", "assistant"]
    content: str | Annotated[list[Part], Field(max_length=100)] | None = None

    @model_validator(mode="before")
    @classmethod
    def _check_kind(cls, value: Any) -> Any:
        """Check that an item of a response's input is a message."""
        kind = value.get("type") if isinstance(value, dict) else None
        if kind in (None, "message"):
            return value
        if kind == "item_reference":
            said = "refers to an item of before, and nothing is stored here: send it (AI SDK: store: false)"
        else:
            said = f"must be a message, not of the type {str(kind)[:64]!r}: leave it out"
        raise ValueError(said)

    @property
    def said(self) -> str:
        """Return its text."""
        if isinstance(self.content, list):
            return "".join(part.text for part in self.content)
        return self.content or ""


class StreamOptions(BaseModel):
    """What a stream has beside the answer."""

    model_config = ConfigDict(extra="allow")

    include_usage: StrictBool | None = False


class Asked(BaseModel):
    """What the requests of both APIs have in common."""

    model_config = ConfigDict(extra="allow")

    model: str = Field(default=pipelines.DEFAULT, min_length=1, max_length=1024)
    stream: StrictBool | None = False
    stream_options: StreamOptions | None = None
    temperature: Annotated[float, Field(ge=0, le=10)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    seed: Annotated[int, Field(ge=0, le=_MAX_SEED)] | None = None
    evenmesh: dict[str, Any] | None = Field(
        default=None,
        description="How to answer: any field of evenmesh.orchestrator.v1.AskRequest but question and turns.",
    )


class ChatRequest(Asked):
    """A request for a chat completion."""

    messages: list[ChatMessage] = Field(min_length=1, max_length=MAX_MESSAGES)
    max_tokens: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None
    stop: str | Annotated[list[str], Field(max_length=MAX_STOP)] | None = None


class ResponseRequest(Asked):
    """A request for a response."""

    input: str | Annotated[list[ChatMessage], Field(min_length=1, max_length=MAX_MESSAGES)]
    max_output_tokens: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None


def read(kind: type[T], value: Any) -> T:
    """Return a checked request.

    Raises:
        InvalidField: it is not such a request; names the first field at fault.
    """
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        problems = error.errors(include_url=False, include_input=False)
        first = _place(problems[0]["loc"])
        # Of a field that may be a text or a list, what is wrong with the list says more than "is no text".
        same = [one for one in problems if _place(one["loc"])[: len(first)] == first]
        problem = max(same, key=lambda one: (one["type"] not in _OF_ANOTHER_TYPE, len(one["loc"])))
        named = _place(problem["loc"])
        path = "".join(f"[{one}]" if isinstance(one, int) else f".{one}" for one in named)
        said = (
            UNKNOWN if problem["type"] == "extra_forbidden" else problem["msg"].removeprefix("Value error, ")
        )
        raise InvalidField(path.removeprefix(".") or "body", said) from None


def _place(loc: Iterable[int | str]) -> list[int | str]:
    """Return the field at a place: behind that of a union stands which of its types was tried."""
    return [one for one in loc if isinstance(one, int) or (one.isidentifier() and one not in _TYPES)]


@contextmanager
def renaming(asked: Asked) -> Iterator[None]:
    """Give errors of an ask the name that its caller knows the field by."""
    try:
        yield
    except MeshError as error:
        raise (error if error.field is None else _renamed(asked, error, error.field)) from error


def _renamed(asked: Asked, error: MeshError, name: str) -> MeshError:
    chat = isinstance(asked, ChatRequest)
    if name.split(".")[0].split("[")[0] in ("question", "turns"):
        field = "messages" if chat else "input"
    elif name == "decoding.max_new_tokens" and (given := _longest(asked)[1]):
        field = given
    elif name in pipelines.PARTS and not (asked.evenmesh or {}).get(name):
        field = "model"
    else:
        sent = name.removeprefix("decoding.")
        field = sent if getattr(asked, sent.split("[")[0], None) is not None else f"evenmesh.{name}"
    said = error.message.removeprefix(f"{name}: ")
    return restored(error.code, error.reason, said, field, error.retry_after_s)


def ask_of(asked: ChatRequest | ResponseRequest) -> tuple[pb.AskRequest, list[str]]:
    """Return the ask that a request makes, and the parameters that have no effect on it.

    Raises:
        InvalidField: a parameter that is not supported, or one that is given twice.
        NotFound: the model is not the name of a pipeline.
    """
    ignored = _ignored(asked)
    given: Any = {} if asked.evenmesh is None else asked.evenmesh
    request = from_value(pb.AskRequest, given, "evenmesh")
    for name in ("question", "turns"):
        if getattr(request, name):
            raise InvalidField(f"evenmesh.{name}", "is what the messages say")
    pipelines.choose(request, asked.model)
    if isinstance(asked, ChatRequest):
        messages, where = asked.messages, "messages"
        if asked.max_completion_tokens and asked.max_tokens:
            ignored.append("max_tokens")
    else:
        said = asked.input
        messages = [ChatMessage(role="user", content=said)] if isinstance(said, str) else said
        where = "input"
    if not _set_decoding(request, asked):
        ignored.append("seed")
    users = [at for at, one in enumerate(messages) if one.role == "user"]
    first = users[0] if users else 0
    ignored += [
        f"{where}[{at}]"
        for at, one in enumerate(messages)
        if one.role in ("system", "developer") or (one.role == "assistant" and at < first)
    ]
    ignored += [
        f"{where}[{at}].{name[:128]}"
        for at, one in enumerate(messages)
        for name, value in (one.model_extra or {}).items()
        if value and name not in _OF_REPLIES
    ]
    question, turns = _talk(messages, where)
    request.question = question
    request.turns.extend(turns)
    return request, ignored


def _longest(asked: Asked) -> tuple[int | None, str]:
    """Return the longest answer that is asked for, and the parameter that says it. Tokens."""
    given = [(value, name) for name in _LONGEST if (value := getattr(asked, name, None)) is not None]
    return given[0] if given else (None, "")


def _ignored(asked: Asked) -> list[str]:
    options = asked.stream_options
    found = [
        f"stream_options.{name[:128]}"
        for name, value in ((options.model_extra if options is not None else None) or {}).items()
        if value
    ]
    for name, value in (asked.model_extra or {}).items():
        if _asks_for_nothing(name, value):
            continue
        if name == "include" and isinstance(value, list) and _INCLUDED.issuperset(map(str, value)):
            found.append(name)
        elif name == "text" and _says_only_verbosity(value):
            found.append("text.verbosity")
        elif name in _IGNORED:
            found.append(name)
        else:
            raise InvalidField(name[:128], _INSTEAD.get(name, UNKNOWN))
    return found


def _asks_for_nothing(name: str, value: Any) -> bool:
    if value is None or value is False or value in _NEUTRAL.get(name, ()):
        return True
    return value in ([], {}) and name not in _ASKS_BY_BEING_THERE


def _says_only_verbosity(text: Any) -> bool:
    """Return whether the parameter ``text`` of a response asks for nothing but a verbosity."""
    if not isinstance(text, dict):
        return False
    return _asks_for_nothing("text", {name: value for name, value in text.items() if name != "verbosity"})


def _set_decoding(request: pb.AskRequest, asked: Asked) -> bool:
    """Set how tokens are chosen, and return whether a seed has an effect: it is that of whatever is drawn."""
    most, limit = _longest(asked)
    values = {
        "temperature": (asked.temperature, "temperature"),
        "top_p": (asked.top_p, "top_p"),
        "max_new_tokens": (None if most is None else min(most, _MAX_NEW_TOKENS), limit),
    }
    given = {field.name for field, _ in request.decoding.ListFields()}
    for field, (value, name) in values.items():
        if value is None:
            continue
        if field in given:
            raise InvalidField(name, f"is given by evenmesh.decoding.{field} too")
        setattr(request.decoding, field, value)
    if isinstance(asked, ChatRequest) and asked.stop is not None:
        if request.decoding.stop:
            raise InvalidField("stop", "is given by evenmesh.decoding.stop too")
        request.decoding.stop.extend([asked.stop] if isinstance(asked.stop, str) else asked.stop)
    if asked.seed is None:
        return True
    drawing: list[tuple[str, Sampling | Decoding]] = []
    if request.HasField("sampling"):
        drawing.append(("sampling", request.sampling))
    if request.decoding.temperature:
        drawing.append(("decoding", request.decoding))
    seeded = [name for name, one in drawing if one.HasField("seed")]
    if drawing and len(seeded) == len(drawing):
        raise InvalidField("seed", f"is given by evenmesh.{seeded[0]}.seed too")
    for name, one in drawing:
        if name not in seeded:
            one.seed = asked.seed
    return bool(drawing)


def _talk(messages: Iterable[ChatMessage], where: str) -> tuple[str, list[Turn]]:
    """Return the question and the turns before it; messages of one role in a row are one text."""
    talk: list[tuple[list[str], list[str]]] = []
    asking: list[str] = []
    for one in messages:
        if one.role == "user":
            asking.append(one.said)
        elif one.role == "assistant":
            if asking:
                talk.append((asking, [one.said]))
                asking = []
            elif talk:
                talk[-1][1].append(one.said)
    if not asking:
        raise InvalidField(where, "must end with a message of the user")
    turns = [Turn(question="\n".join(asked), answer="\n".join(said)) for asked, said in talk]
    return "\n".join(asking), turns
