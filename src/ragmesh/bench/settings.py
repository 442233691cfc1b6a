"""What is asked for in every call of a step, and what of it makes no sense."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, Literal, Self, get_args

OperationName = Literal["ask", "rerank", "generate", "rerank-generate"]
"""What is called: the orchestrator, the reranker, the generator, or the last two one after the other."""

OPERATIONS: Final[tuple[OperationName, ...]] = get_args(OperationName)

LARGEST_POOL: Final = 1_000
LARGEST_CONTEXT: Final = 100


@dataclass(frozen=True, slots=True)
class Settings:
    """What every call of a step asks for; None leaves it to the mesh.

    Attributes:
        operation: what is called.
        n: passages of the pool; those that are reranked. 1 to 1,000.
        k: passages that the model is given, 1 to ``n`` and at most 100.
        alpha: fairness dial of an ask, 0 to 100; None for the deterministic ranking.
        samples: rankings of an ask that are drawn and answered, 1 to 1,000; only with ``alpha``.
        collection: where passages come from.
        retriever: by name.
        reranker: by name.
        model: the generator's, by name.
        max_new_tokens: longest answer.
        observe: whether the evaluator is told of asks.
        distinct: whether a number is added to every question, so that no cache knows it.
        run_id: run that asks are filed under.
        timeout_s: when a call is given up. Seconds.
    """

    operation: OperationName = "ask"
    n: int = 100
    k: int = 5
    alpha: float | None = None
    samples: int | None = None
    collection: str = "demo"
    retriever: str | None = None
    reranker: str | None = None
    model: str | None = None
    max_new_tokens: int | None = None
    observe: bool = True
    distinct: bool = True
    run_id: str = "bench"
    timeout_s: float = 60.0

    def problems(self) -> Iterator[str]:
        """What makes no sense, a line each."""
        if self.operation not in OPERATIONS:
            yield f"operation is {self.operation!r}; allowed: {', '.join(OPERATIONS)}"
        if not 1 <= self.n <= LARGEST_POOL:
            yield f"N is {self.n}; allowed: 1 to {LARGEST_POOL:,}"
        if not 1 <= self.k <= LARGEST_CONTEXT:
            yield f"k is {self.k}; allowed: 1 to {LARGEST_CONTEXT}"
        elif self.k > self.n >= 1:
            yield f"k is {self.k}; allowed: up to N, which is {self.n}"
        if self.alpha is not None:
            if self.operation != "ask":
                yield f"alpha is {self.alpha:g}; only asks draw rankings, not {self.operation}"
            if not 0 <= self.alpha <= 100:
                yield f"alpha is {self.alpha:g}; allowed: 0 to 100"
        if self.samples is not None and not 1 <= self.samples <= 1_000:
            yield f"samples is {self.samples}; allowed: 1 to 1,000"
        if self.max_new_tokens is not None and not 1 <= self.max_new_tokens <= 4_096:
            yield f"max-new-tokens is {self.max_new_tokens}; allowed: 1 to 4,096"
        if not 0 < self.timeout_s <= 86_400:
            yield f"timeout is {self.timeout_s:g}; allowed: above 0, up to 86,400 seconds"

    def with_values(self, values: Mapping[str, Any]) -> Self:
        """The same with some other values, by name."""
        return replace(self, **values)

    def as_dict(self) -> dict[str, Any]:
        """All of it, by name."""
        return asdict(self)
