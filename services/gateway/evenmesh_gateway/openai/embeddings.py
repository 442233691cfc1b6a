"""Embeddings: the shape of OpenAI's ``POST /v1/embeddings``."""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from evenmesh.retriever.v1 import retriever_service_pb2 as pb
from evenmesh.wire.errors import InvalidField
from evenmesh_gateway.openai.pipelines import DEFAULT

MAX_INPUTS: Final = 2_048
"""Most texts of a request."""
MAX_TEXT_BYTES: Final = 65_536
"""Largest text. Bytes."""
_CALL_TEXTS: Final = 64
_CALL_BYTES: Final = 16_384
"""Largest texts of one call together, where it has several: they are well within what one may ask of the
encoder, so that requests of others get turns in between. Bytes."""
_NUMBER_BYTES: Final = 64
"""Memory of a number of a vector: in the message, as an object, and as text. Bytes."""
_KINDS: Final = {
    None: pb.TEXT_KIND_UNSPECIFIED,
    "query": pb.TEXT_KIND_QUERY,
    "search_query": pb.TEXT_KIND_QUERY,
    "passage": pb.TEXT_KIND_PASSAGE,
    "search_document": pb.TEXT_KIND_PASSAGE,
}

_Text = Annotated[str, Field(min_length=1, max_length=MAX_TEXT_BYTES)]


class EmbeddingRequest(BaseModel):
    """A request for the vectors of texts."""

    model_config = ConfigDict(extra="forbid")

    model: str = Field(
        default=DEFAULT,
        min_length=1,
        max_length=256,
        description="Name of the encoder; `evenmesh` is that of the mesh.",
    )
    input: _Text | Annotated[list[_Text], Field(min_length=1, max_length=MAX_INPUTS)]
    encoding_format: Literal["float", "base64"] | None = "float"
    dimensions: Annotated[int, Field(ge=1, le=2**32 - 1)] | None = Field(
        default=None, description="Length of the vectors: only that of the encoder."
    )
    input_type: Literal["query", "passage", "search_query", "search_document"] | None = Field(
        default=None, description="What the texts are; some encoders encode both in different ways."
    )
    user: Annotated[str, Field(max_length=256)] | None = Field(default=None, description="Has no effect.")

    @property
    def texts(self) -> list[str]:
        """Return the texts."""
        return [self.input] if isinstance(self.input, str) else self.input


def refuse_tokens(value: Any) -> None:
    """Refuse tokens, which are those of another model.

    Raises:
        InvalidField: the input of the request is numbers, or lists of them.
    """
    given = value.get("input") if isinstance(value, dict) else None
    first = given[0] if isinstance(given, list) and given else None
    if isinstance(first, (int, float, list)):
        raise InvalidField(
            "input",
            "must be a text or a list of texts: tokens are those of another model's tokenizer (LangChain: "
            "check_embedding_ctx_length=False)",
        )


def calls_of(asked: EmbeddingRequest) -> Iterator[pb.EmbedRequest]:
    """Yield the calls of a request, whose replies follow each other.

    Raises:
        InvalidField: a text is too large, or only white space.
    """
    call, size = _call(asked), 0
    for at, text in enumerate(asked.texts):
        length = len(text.encode(errors="replace"))
        if length > MAX_TEXT_BYTES or not text.strip():
            where = "input" if isinstance(asked.input, str) else f"input[{at}]"
            raise InvalidField(where, f"must be 1 to {MAX_TEXT_BYTES:,} bytes, and not only white space")
        if call.texts and (len(call.texts) == _CALL_TEXTS or size + length > _CALL_BYTES):
            yield call
            call, size = _call(asked), 0
        try:
            call.texts.append(text)
        except (ValueError, UnicodeEncodeError):
            raise InvalidField("input", "must be Unicode without lone surrogates") from None
        size += length
    yield call


def listing(asked: EmbeddingRequest, replies: Sequence[pb.EmbedResponse]) -> dict[str, Any]:
    """Return the vectors of all calls, in the order of the texts."""
    found = [one for reply in replies for one in reply.embeddings]
    tokens = sum(one.tokens for one in found)
    written = _base64 if asked.encoding_format == "base64" else list
    return {
        "object": "list",
        "data": [
            {"object": "embedding", "index": at, "embedding": written(one.values)}
            for at, one in enumerate(found)
        ],
        "model": replies[0].model,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        "evenmesh": {"fingerprint": replies[0].fingerprint, "max_tokens": replies[0].max_tokens},
    }


def memory_of(asked: EmbeddingRequest, first: pb.EmbedResponse) -> int:
    """Return what the reply takes in memory while it is made, by that to the first call. Bytes."""
    dimension = max((len(one.values) for one in first.embeddings), default=0)
    return _NUMBER_BYTES * dimension * len(asked.texts)


def _call(asked: EmbeddingRequest) -> pb.EmbedRequest:
    model = "" if asked.model == DEFAULT else asked.model
    return pb.EmbedRequest(kind=_KINDS[asked.input_type], model=model, dimension=asked.dimensions)


def _base64(values: Sequence[float]) -> str:
    """Return the values as float32, little-endian, in base64."""
    return base64.b64encode(struct.pack(f"<{len(values)}f", *values)).decode("ascii")
