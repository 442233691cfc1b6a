"""Translate texts to encode, and their vectors."""

from __future__ import annotations

from typing import Final

from evenmesh.retriever.v1 import retriever_service_pb2 as retriever_pb
from evenmesh.wire import checks
from evenmesh.wire.errors import InvalidField
from evenmesh_retriever.codec.passages import decoded_bytes
from evenmesh_retriever.embedding import Embedded, Texts

MAX_TEXTS: Final = 256
"""Most texts of a request."""
_LARGEST: Final = 2**32 - 1


def texts_of(request: retriever_pb.EmbedRequest) -> Texts:
    """Read a request to encode.

    Raises:
        InvalidField: a field is outside the bounds of the contract.
    """
    if not 1 <= len(request.texts) <= MAX_TEXTS:
        raise InvalidField("texts", f"must be 1 to {MAX_TEXTS}, has {len(request.texts)}")
    for at, text in enumerate(request.texts):
        checks.text(f"texts[{at}]", text, max_bytes=checks.MAX_PASSAGE_BYTES)
    if request.kind not in retriever_pb.TextKind.values():
        raise InvalidField("kind", "must be a kind of text that this server knows")
    dimension = None
    if request.HasField("dimension"):
        dimension = checks.between("dimension", request.dimension, 1, _LARGEST)
    return Texts(
        texts=list(request.texts),
        are_queries=request.kind == retriever_pb.TEXT_KIND_QUERY,
        model=request.model,
        dimension=dimension,
        held_bytes=decoded_bytes(request, ()),
    )


def response_of(embedded: Embedded) -> retriever_pb.EmbedResponse:
    """Write the vectors."""
    response = retriever_pb.EmbedResponse(
        model=embedded.model,
        fingerprint=embedded.fingerprint,
        max_tokens=min(embedded.max_tokens, _LARGEST),
    )
    for vector, tokens in zip(embedded.vectors, embedded.tokens, strict=True):
        response.embeddings.add(values=vector.tolist(), tokens=min(tokens, _LARGEST))
    return response
