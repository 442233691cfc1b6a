"""Settings of the calls of a step, and their checks."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal, get_args

OperationName = Literal["ask", "rerank", "generate", "rerank-generate"]
"""The service called: orchestrator, reranker, generator, or the last two in turn."""

OPERATIONS: Final[tuple[OperationName, ...]] = get_args(OperationName)

LARGEST_POOL: Final = 1_000
LARGEST_CONTEXT: Final = 100


def out_of_range(*rows: tuple[str, float | None, bool, str]) -> Iterator[str]:
    """Yield a line for each value that is not allowed: rows of name, value, whether it is, and what is."""
    for name, value, is_allowed, allowed in rows:
        if not is_allowed:
            yield f"{name} is {f'{value:g}' if isinstance(value, float) else value}; allowed: {allowed}"


@dataclass(frozen=True, slots=True)
class CallSettings:
    """Settings of every call of a step; None for the mesh's default.

    Attributes:
        operation: the call.
        n: passages of the pool, which are reranked, 1 to 1,000.
        k: passages the model is given, 1 to ``n`` and at most 100.
        alpha: fairness dial of an ask, 0 to 100; None for the deterministic ranking.
        samples: rankings an ask draws and answers, 1 to 1,000; only with ``alpha``.
        collection: source of passages.
        retriever: by name.
        reranker: by name.
        model: the generator's, by name.
        max_new_tokens: longest answer in tokens.
        observe: whether asks are sent to the evaluator.
        distinct: whether a number is appended to every question, so that no cache hits.
        run_id: run that asks are filed under.
        timeout_s: deadline of a call in seconds.
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
        """Yield the problems of the settings, a line each."""
        if self.operation not in OPERATIONS:
            yield f"operation is {self.operation!r}; allowed: {', '.join(OPERATIONS)}"
        tokens = self.max_new_tokens
        yield from out_of_range(
            ("N", self.n, 1 <= self.n <= LARGEST_POOL, f"1 to {LARGEST_POOL:,}"),
            ("k", self.k, 1 <= self.k <= LARGEST_CONTEXT, f"1 to {LARGEST_CONTEXT}"),
            ("k", self.k, not LARGEST_CONTEXT >= self.k > self.n >= 1, f"up to N, which is {self.n}"),
            ("alpha", self.alpha, 0 <= (self.alpha or 0) <= 100, "0 to 100"),
            ("samples", self.samples, self.samples is None or 1 <= self.samples <= 1_000, "1 to 1,000"),
            ("max-new-tokens", tokens, tokens is None or 1 <= tokens <= 4_096, "1 to 4,096"),
            ("timeout", self.timeout_s, 0 < self.timeout_s <= 86_400, "above 0, up to 86,400 seconds"),
        )
        if self.alpha is not None and self.operation != "ask":
            yield f"alpha is {self.alpha:g}; only asks draw rankings, not {self.operation}"

    def as_dict(self) -> dict[str, Any]:
        """Return all values by name."""
        return asdict(self)
