"""The messages of one ask, of the sizes that performance targets are stated for.

100 candidates of 600 characters (about 60 KB), 20 of them reranked, 5 shown, an answer of 64 tokens in as
many deltas.
"""

from __future__ import annotations

from evenmesh.common.v1 import common_pb2 as common
from evenmesh.generator.v1 import generator_service_pb2 as gen
from evenmesh.reranker.v1 import reranker_service_pb2 as rer
from evenmesh.retriever.v1 import retriever_service_pb2 as ret

POOL = 100
RERANKED = 20
SHOWN = 5
TOKENS = 64
QUESTION = "how often should a chain be cleaned in winter"


def passages(count: int = POOL) -> list[common.Passage]:
    """``count`` passages of 600 characters by ten providers."""
    sentence = "word " * 117
    return [
        common.Passage(
            id=f"p{i:04d}", title=f"Passage {i}", text=sentence, attributes={"provider": f"provider {i % 10}"}
        )
        for i in range(count)
    ]


def retrieved() -> ret.RetrieveResponse:
    """Return a pool of 100 with one deterministic ranking of 5."""
    return ret.RetrieveResponse(
        passages=passages(),
        scores=[1.0 / (1 + i) for i in range(POOL)],
        rankings=common.Rankings(depth=SHOWN, indices=range(SHOWN)),
        index_version="v1",
        retriever="stand-in",
    )


def reranked(count: int = RERANKED) -> rer.RerankResponse:
    """Return scores and order of ``count`` passages."""
    return rer.RerankResponse(
        scores=[1.0 / (1 + i) for i in range(count)],
        order=range(count),
        model_version="v1",
        reranker="stand-in",
    )


def answer() -> gen.Answer:
    """Return a finished answer of 64 tokens."""
    return gen.Answer(
        text="token " * TOKENS,
        finish_reason=gen.Answer.FINISH_REASON_STOP,
        prompt_tokens=900,
        completion_tokens=TOKENS,
        log_probability=-12.5,
        model="stand-in",
        model_version="v1",
        engine="stand-in",
    )
