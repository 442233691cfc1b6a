"""Cut long computations into steps: between two of them others take turns and a cancelled call ends."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from evenmesh_kit.compute.executors import ComputePool

T = TypeVar("T")
V = TypeVar("V")

Steps = Generator[int, None, T]
"""A computation: each ``yield`` ends a step and gives the tokens that the next one encodes; it returns its
result."""

BYTES: Final = 2**16
"""Text that is analysed in one step, about. Bytes."""
_ENCODED: Final = 2**13
_ENCODED_AT_ONCE: Final = 2**18
"""Text that is encoded in one step, about: on a CPU, and where any number of texts is. Characters."""


@dataclass(frozen=True, slots=True)
class Outcome(Generic[T]):
    """A result, and the time that its steps took in their threads. Seconds."""

    result: T
    seconds: float


async def run(
    pool: ComputePool, steps: Steps[T], check: Callable[[int], None] = lambda _: None
) -> Outcome[T]:
    """Run a computation step by step in threads; cancelling the caller ends it after the running step.

    Args:
        pool: the threads.
        steps: the computation.
        check: called before each step with the tokens that are encoded up to its end; what it raises ends the
            computation.
    """
    seconds, tokens = 0.0, 0
    while True:
        outcome, took = await pool.run(_advanced, steps)
        seconds += took
        if isinstance(outcome, Outcome):
            return Outcome(outcome.result, seconds)
        tokens += outcome
        check(tokens)


def finish(steps: Steps[T]) -> T:
    """Run a computation to its end here."""
    while not isinstance(outcome := _advanced(steps)[0], Outcome):
        pass
    return outcome.result


def at_once(compute: Callable[[], T]) -> Steps[T]:
    """Return a computation of one step."""
    yield from ()
    return compute()


def encoded(
    texts: Sequence[str],
    encode: Callable[[Sequence[str]], Sequence[V]],
    count: Callable[[Sequence[str]], int],
    most: int | None,
) -> Steps[list[V]]:
    """Return what a model makes of each text, equal texts encoded once, in batches of similar length.

    A batch is a step: ``most`` texts, or fewer where they are long.

    Args:
        texts: the texts.
        encode: encodes a batch.
        count: counts the tokens that encoding a batch reads.
        most: most texts of a batch; None: any number.
    """
    found: dict[str, V] = {}
    batch: list[str] = []
    size = 0
    for text in sorted(set(texts), key=_longest_first):
        if batch and (len(batch) == most or size + len(text) > (_ENCODED if most else _ENCODED_AT_ONCE)):
            yield count(batch)
            found.update(zip(batch, encode(batch), strict=True))
            batch, size = [], 0
        batch.append(text)
        size += len(text)
    if batch:
        yield count(batch)
        found.update(zip(batch, encode(batch), strict=True))
    return [found[text] for text in texts]


def in_batches(
    texts: Sequence[str],
    most: int | None,
    encode: Callable[[list[str]], Iterable[V]],
    progress: Callable[[int], None],
) -> list[V]:
    """Return what a model makes of each text, as :func:`encoded`, with ``most`` texts in each batch.

    Without ``most`` a batch has any number of texts, of a quarter million characters with what pads them.
    ``progress`` is called with the number of texts done, after each batch.
    """
    found: dict[str, V] = {}
    distinct = sorted(set(texts), key=_longest_first)
    begin = 0
    while begin < len(distinct):
        size = most or max(1, _ENCODED_AT_ONCE // max(1, len(distinct[begin])))
        batch = distinct[begin : begin + size]
        begin += size
        found.update(zip(batch, encode(batch), strict=True))
        progress(len(found))
    return [found[text] for text in texts]


def _longest_first(text: str) -> tuple[int, str]:
    """Order texts as encoders sort; characters stand for bytes."""
    return -len(text), text


def _advanced(steps: Steps[T]) -> tuple[Outcome[T] | int, float]:
    """Run one step; return the tokens of the next one, or the result, and the seconds that it took."""
    began = time.perf_counter()
    try:
        outcome: Outcome[T] | int = next(steps)
    except StopIteration as end:
        outcome = Outcome(end.value, 0.0)
    return outcome, time.perf_counter() - began
