"""Text from threads to the event loop, and the way back: nobody waits any more."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing

import pytest

from evenmesh.wire.errors import MeshError, Unavailable
from evenmesh_generator.backends.deltas import DeltaQueue
from evenmesh_generator.backends.in_process import InProcessModel
from evenmesh_generator.domain import (
    Answer,
    Augmentation,
    FinishReason,
    GenerationRequest,
    ModelDescription,
    RelevanceRequest,
)
from evenmesh_generator.ports import Cancellation, Cancelled
from evenmesh_generator.runtime.engine import LanguageEngine
from evenmesh_generator.runtime.tasks import Listener, Outcome
from evenmesh_kit.compute.executors import ComputePool

REQUEST = GenerationRequest("?")


def _answer(text: str) -> Answer:
    return Answer(text, FinishReason.STOP, 1, 1, -1.0)


class Paced(LanguageEngine):
    """An engine that writes ``words`` on one thread, and before each calls ``before`` with their number so far.

    Without words it computes until nobody waits.
    """

    def __init__(self, words: Sequence[str], before: Callable[[int], None] = lambda _: None) -> None:
        self.words = words
        self.before = before
        self.steps = 0
        self.stopped = threading.Event()
        self.thread = ThreadPoolExecutor(1)

    def describe(self) -> ModelDescription:
        return ModelDescription("m", "v", "e", "a", "cpu", "float32", True, 9, 9, (Augmentation.IN_PROMPT,))

    def submit(self, request: GenerationRequest, cancel: Cancellation, listener: Listener) -> None:
        self.thread.submit(self._write, cancel, listener)

    def judge(self, request: RelevanceRequest, cancel: Cancellation) -> list[float]:
        raise Unavailable("GONE", "the model is away")

    def _write(self, cancel: Cancellation, listener: Listener) -> None:
        outcome: Outcome = _answer("".join(self.words))
        try:
            for at, word in enumerate(self.words):
                cancel.check()
                self.before(at)
                self.steps += 1
                listener.on_delta(word)
            while not self.words:
                cancel.check()
                self.steps += 1
                time.sleep(0.001)  # a step of computing
        except (MeshError, Cancelled) as error:
            outcome = error
        self.stopped.set()
        listener.on_end(outcome)


@pytest.fixture
def pool() -> ComputePool:
    return ComputePool(2, "test")


async def _collect(model: InProcessModel, cancel: Cancellation) -> tuple[list[str], Answer]:
    deltas: list[str] = []
    async for part in model.generate_stream(REQUEST, cancel):
        if isinstance(part, Answer):
            return deltas, part
        deltas.append(part)
    raise AssertionError("no answer")


async def test_deltas_join_to_the_text(pool: ComputePool) -> None:
    words = [f"{at} " for at in range(500)]
    deltas, answer = await _collect(InProcessModel(Paced(words), interval_s=0), Cancellation())
    assert "".join(deltas) == answer.text == "".join(words)


async def test_each_piece_leaves_before_the_next_is_made(pool: ComputePool) -> None:
    """Every step waits until the delta before it has been read: so streams are true streams."""
    read = [threading.Event() for _ in range(5)]

    def wait_for_reader(at: int) -> None:
        if at:
            assert read[at - 1].wait(10), f"delta {at - 1} was not handed on before step {at}"

    model = InProcessModel(Paced("abcde", wait_for_reader), interval_s=0)
    seen = []
    async with aclosing(model.generate_stream(REQUEST, Cancellation())) as parts:
        async for part in parts:
            if isinstance(part, str):
                seen.append(part)
                read[len(seen) - 1].set()
    assert seen == list("abcde")


async def test_pieces_that_wait_together_leave_together() -> None:
    queue = DeltaQueue(asyncio.get_running_loop(), 0)
    for piece in "abc":
        queue.put(piece)
    queue.close()
    assert [text async for text in queue.read()] == ["abc"]


async def test_an_interval_gathers_pieces_but_delays_neither_the_first_nor_the_last() -> None:
    queue = DeltaQueue(asyncio.get_running_loop(), 60.0)
    texts = queue.read()
    queue.put("a")
    assert await asyncio.wait_for(anext(texts), 5) == "a"
    waiting = asyncio.ensure_future(anext(texts))
    queue.put("b")
    queue.put("c")
    await asyncio.sleep(0.01)
    assert not waiting.done()
    queue.close()
    assert await asyncio.wait_for(waiting, 5) == "bc"
    with pytest.raises(StopAsyncIteration):
        await anext(texts)


async def test_leaving_a_stream_stops_the_model_within_a_step(pool: ComputePool) -> None:
    began = threading.Event()

    def slow(at: int) -> None:
        if at:
            began.set()
            time.sleep(0.005)  # a step of computing

    paced = Paced(["x"] * 100_000, slow)
    model = InProcessModel(paced, interval_s=0)
    async with aclosing(model.generate_stream(REQUEST, Cancellation())) as parts:
        await anext(parts)
        while not began.is_set():
            await anext(parts)
    steps = paced.steps
    assert await asyncio.to_thread(paced.stopped.wait, 10)
    assert paced.steps - steps <= 2


async def test_cancelling_an_answer_stops_the_model(pool: ComputePool) -> None:
    paced = Paced(())
    model = InProcessModel(paced, interval_s=0)
    task = asyncio.ensure_future(model.generate(REQUEST, Cancellation()))
    while not paced.steps:
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await asyncio.to_thread(paced.stopped.wait, 10)


async def test_a_finished_stream_leaves_its_cancellation_alone(pool: ComputePool) -> None:
    cancel = Cancellation()
    await _collect(InProcessModel(Paced("ab"), interval_s=0), cancel)
    assert not cancel.cancelled


async def test_errors_of_the_model_reach_the_caller(pool: ComputePool) -> None:
    def fail(at: int) -> None:
        if at == 2:
            raise Unavailable("GONE", "the model is away")

    model = InProcessModel(Paced("abcd", fail), interval_s=0)
    seen = ""
    with pytest.raises(Unavailable, match="the model is away"):
        async for part in model.generate_stream(REQUEST, Cancellation()):
            assert isinstance(part, str)
            seen += part
    assert seen == "ab"
    with pytest.raises(Unavailable):
        await model.score_relevance(RelevanceRequest("q", ()), Cancellation())


async def test_a_stream_that_waits_and_is_left_never_runs(pool: ComputePool) -> None:
    paced = Paced("abc")
    release = threading.Event()
    paced.thread.submit(release.wait, 10)
    task = asyncio.ensure_future(_collect(InProcessModel(paced, interval_s=0), Cancellation()))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    release.set()
    assert await asyncio.to_thread(paced.stopped.wait, 10)
    assert paced.steps == 0


def test_a_cancellation_says_why() -> None:
    cancel = Cancellation()
    cancel.check()
    cancel.cancel()
    assert cancel.cancelled
    with pytest.raises(Cancelled):
        cancel.check()
