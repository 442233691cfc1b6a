"""What clients of OpenAI's API send: checked, and read as an ask."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any, Final, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StrictBool, ValidationError

from evenmesh.common.v1.common_pb2 import Sampling
from evenmesh.generator.v1.generator_service_pb2 import Decoding, Turn
from evenmesh.orchestrator.v1 import orchestrator_service_pb2 as pb
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
        "metadata",
        "parallel_tool_calls",
        "prompt_cache_key",
        "reasoning",
        "reasoning_effort",
        "safety_identifier",
        "service_tier",
        "store",
        "user",
        "verbosity",
    }
)
"""Parameters without an effect here, which a reply lists; any other is refused, as it would be missed."""

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

    @property
    def said(self) -> str:
        """Return its text."""
        if isinstance(self.content, list):
            return "".join(part.text for part in self.content)
        return self.content or ""


class StreamOptions(BaseModel):
    """How a stream of chunks ends."""

    model_config = ConfigDict(extra="allow")

    include_usage: StrictBool = False


class Asked(BaseModel):
    """What the requests of both APIs have in common."""

    model_config = ConfigDict(extra="allow")

    model: str = Field(default=pipelines.DEFAULT, min_length=1, max_length=1024)
    stream: StrictBool | None = False
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
    stream_options: StreamOptions | None = None
    max_tokens: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None


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
        raise InvalidField(path.removeprefix(".") or "body", problem["msg"]) from None


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
        field = sent if getattr(asked, sent, None) is not None else f"evenmesh.{name}"
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
    question, turns = _talk(messages, where)
    request.question = question
    request.turns.extend(turns)
    return request, ignored


def _longest(asked: Asked) -> tuple[int | None, str]:
    """Return the longest answer that is asked for, and the parameter that says it. Tokens."""
    given = [(value, name) for name in _LONGEST if (value := getattr(asked, name, None)) is not None]
    return given[0] if given else (None, "")


def _ignored(asked: Asked) -> list[str]:
    found = []
    for name, value in (asked.model_extra or {}).items():
        if value is None or value is False or value in ([], {}) or value in _NEUTRAL.get(name, ()):
            continue
        if name not in _IGNORED:
            raise InvalidField(name[:128], "is not supported here")
        found.append(name)
    return found


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
    turns: list[Turn] = []
    asking: list[str] = []
    for one in messages:
        if one.role == "user":
            asking.append(one.said)
        elif one.role == "assistant":
            if asking:
                turns.append(Turn(question="\n".join(asking), answer=one.said))
                asking = []
            elif turns:
                turns[-1].answer += f"\n{one.said}"
    if not asking:
        raise InvalidField(where, "must end with a message of the user")
    return "\n".join(asking), turns
