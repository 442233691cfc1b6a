"""Rerank: the shapes of Cohere's and Jina's ``POST /v1/rerank``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, StrictBool

from evenmesh.common.v1.common_pb2 import Passage
from evenmesh.reranker.v1 import reranker_service_pb2 as pb
from evenmesh.wire.errors import InvalidField, MeshError, restored
from evenmesh_gateway.json_messages import from_value
from evenmesh_gateway.openai.pipelines import DEFAULT
from evenmesh_gateway.openai.requests import UNKNOWN

_OWN: Final = ("query", "passages", "topK", "top_k")
_NEUTRAL: Final[Mapping[str, Any]] = {"rank_fields": ["text"], "truncation": True, "return_embeddings": False}
"""Values with which a parameter asks for nothing that is not done anyway."""
_IGNORED: Final = frozenset({"max_chunks_per_doc", "max_tokens_per_doc", "priority", "user"})
"""Parameters of Cohere without an effect here, which a reply lists: the reranker reads what its model can."""


class Document(BaseModel):
    """A document with more than its text."""

    model_config = ConfigDict(extra="allow")

    text: str
    title: str = ""


class RerankRequest(BaseModel):
    """A request to rank documents."""

    model_config = ConfigDict(extra="allow")

    model: str = Field(default=DEFAULT, min_length=1, max_length=256)
    query: str = Field(min_length=1, max_length=8192)
    documents: Annotated[list[str | Document], Field(min_length=1, max_length=1000)]
    top_n: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None
    return_documents: StrictBool | None = False
    evenmesh: dict[str, Any] | None = Field(
        default=None, description="Any other field of evenmesh.reranker.v1.RerankRequest."
    )


def message_of(asked: RerankRequest) -> pb.RerankRequest:
    """Return the request of the reranker; the model names it, ``evenmesh`` is its default.

    Raises:
        InvalidField: a field is given twice, does not fit, or is not supported.
    """
    _ignored(asked)
    given: Mapping[str, Any] = asked.evenmesh or {}
    for name in _OWN:
        if name in given:
            raise InvalidField(f"evenmesh.{name}", "is given beside it")
    request = from_value(pb.RerankRequest, given, "evenmesh")
    assert isinstance(request, pb.RerankRequest)  # noqa: S101 - what it was asked for
    request.query = asked.query
    request.top_k = min(asked.top_n or len(asked.documents), len(asked.documents))
    if asked.model != DEFAULT:
        if request.reranker:
            raise InvalidField("evenmesh.reranker", "is named by the model too")
        request.reranker = asked.model
    for at, one in enumerate(asked.documents):
        document = Document(text=one) if isinstance(one, str) else one
        request.passages.append(Passage(id=str(at), title=document.title, text=document.text))
    return request


def _ignored(asked: RerankRequest) -> list[str]:
    found = []
    for name, value in (asked.model_extra or {}).items():
        if value is None or value == _NEUTRAL.get(name):
            continue
        if name not in _IGNORED:
            raise InvalidField(name[:128], UNKNOWN)
        found.append(name)
    return found


@contextmanager
def renaming(asked: RerankRequest) -> Iterator[None]:
    """Give errors of the reranker the name that the caller knows the field by."""
    try:
        yield
    except MeshError as error:
        if error.field is None:
            raise
        said = error.message.removeprefix(f"{error.field}: ")
        field = _renamed(asked, error.field)
        raise restored(error.code, error.reason, said, field, error.retry_after_s) from error


def _renamed(asked: RerankRequest, name: str) -> str:
    passage, dot, part = name.partition(".")
    if passage.startswith("passages["):
        document = passage.replace("passages", "documents")
        at = int(passage.removeprefix("passages[").rstrip("]"))
        return document if isinstance(asked.documents[at], str) else f"{document}{dot}{part}"
    if name == "reranker" and asked.model != DEFAULT:
        return "model"
    return {"passages": "documents", "top_k": "top_n", "query": "query"}.get(name, f"evenmesh.{name}")


def ranking(asked: RerankRequest, reply: pb.RerankResponse, call_id: str) -> dict[str, Any]:
    """Return the ranked documents, best first."""
    results = []
    for at in reply.order:
        result: dict[str, Any] = {"index": at, "relevance_score": reply.scores[at]}
        if asked.return_documents:
            one = asked.documents[at]
            result["document"] = {"text": one} if isinstance(one, str) else one.model_dump(exclude_unset=True)
        results.append(result)
    return {
        "id": call_id,
        "object": "list",
        "model": asked.model,
        "results": results,
        "meta": {"api_version": {"version": "2"}},
        "evenmesh": {
            "reranker": reply.reranker,
            "model_version": reply.model_version,
            "fusion": reply.fusion,
            "ignored": _ignored(asked),
        },
    }
