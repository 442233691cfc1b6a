"""What 10,000 statements a minute cost asks: a mesh with stand-in models, alone and beside them in turn.

``python -m benchmarks.statements ADDRESS`` is the process that asks the evaluator there for statements: `go`
on its standard input begins, `stop` ends and prints how many it got, within which time. `burn MS` asks for
none and spends so much processor time in place of each: a provider's program runs elsewhere, and what it
takes of this machine is no cost of the mesh.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Final

import grpc
from google.protobuf import json_format
from scipy.stats import binom

from benchmarks import load
from benchmarks.mesh import COLLECTION, ingest, stand_in_mesh
from evenmesh.evaluator.v1 import evaluator_service_pb2 as pb
from evenmesh.evaluator.v1 import evaluator_service_pb2_grpc as pb_grpc
from evenmesh.statements import new_key, parse, public_keys, verify

HEADING: Final = "Statements beside asks"
PER_MINUTE: Final = 10_000
_WARM_UP_S: Final = 1.0
_CALIBRATION_S: Final = 4.0
_OBSERVED: Final = 40
_LATE_S: Final = 30.0


@dataclass(frozen=True)
class Beside:
    """Asks alone, beside a program that takes the caller's time, and beside statements; medians of rounds.

    Attributes:
        alone_ms: p50 of asks alone. Milliseconds.
        burnt_ms: p50 of asks beside the caller's processor time. Milliseconds.
        beside_ms: p50 of asks beside statements and their caller. Milliseconds.
        caller_ratio: median of the rounds' ratios of beside the caller's time to alone.
        ratio: median of the rounds' ratios of beside statements to beside the caller's time.
        interval: 95 % interval of that, by ranks of the rounds.
        whole_ratio: median of the rounds' ratios of beside statements to alone.
        per_minute: statements that the evaluator gave in a minute, while it was asked for them.
        evaluator: CPU of the evaluator for a statement, less what the asks take it. Milliseconds.
        caller: CPU of the caller for a statement. Milliseconds.
        burnt: CPU of the program that took its place, for as many. Milliseconds.
        rounds: of the three.
    """

    alone_ms: float
    burnt_ms: float
    beside_ms: float
    caller_ratio: float
    ratio: float
    interval: tuple[float, float]
    whole_ratio: float
    per_minute: float
    evaluator: float
    caller: float
    burnt: float
    rounds: int


def measure(*, rounds: int = 45, count: int = 100) -> Beside:
    """Return what asks cost alone and beside statements."""
    with tempfile.TemporaryDirectory(prefix="evenmesh-bench-") as folder:
        home = Path(folder)
        _, public = new_key(home / "signing.pem")
        (home / "public.pem").write_text(public)
        given = {
            "EVENMESH_EVALUATOR_STATEMENT_KEY": str(home / "signing.pem"),
            "EVENMESH_EVALUATOR_STATEMENT_MIN_ASKS": "1",
        }
        with stand_in_mesh(home / "mesh", "benchmarks.stand_in_generator", given) as state:
            asyncio.run(ingest(state.addresses["retriever"]))
            address, pid = state.addresses["evaluator"], state.services["evaluator"].pid
            if pid is None:
                raise RuntimeError("the evaluator does not run here: its CPU cannot be measured")
            asyncio.run(_settled(state.addresses["orchestrator"], address, home / "public.pem"))
            with _reader(address) as reader:
                return asyncio.run(_measured(state.addresses["orchestrator"], reader, pid, rounds, count))


def section(found: Beside) -> str:
    """Return what was measured as a section of docs/science/benchmarks.md."""
    low, high = found.interval
    return f"""Asks (64 tokens streamed, one observation) with one caller, by a mesh of five processes
whose models answer at once: alone, beside a process that asks the evaluator for {PER_MINUTE:,} signed
statements a minute, of ten providers in turn, and beside the same process when it asks for none and spends
as much processor time. That process stands for providers' programs elsewhere: what statements cost asks is
the ratio of the last two. Medians of {found.rounds} rounds, the three in turn.

| | alone | beside the caller's time | beside statements | target |
|---|---|---|---|---|
| p50, one caller | {found.alone_ms:.2f} ms | {found.burnt_ms:.2f} ms | {found.beside_ms:.2f} ms | |
| of that beside the caller's time | | | {found.ratio:.3f} [{low:.3f}, {high:.3f}] | ≤ 1.05 |
| of that alone | | {found.caller_ratio:.3f} | {found.whole_ratio:.3f} | |
| statements a minute | | | {found.per_minute:,.0f} | {PER_MINUTE:,} |
| the evaluator's CPU for one | | | {found.evaluator:.2f} ms | |
| the caller's CPU for one | | {found.burnt:.2f} ms | {found.caller:.2f} ms | |"""


class _Reader:
    """The process that asks for statements."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        """Return its number."""
        return self._process.pid

    def go(self) -> None:
        """Begin to ask for statements."""
        self._say("go")

    def burn(self, milliseconds: float) -> None:
        """Begin to spend so much processor time in place of each statement."""
        self._say(f"burn {milliseconds:.4f}")

    def stop(self) -> tuple[int, float]:
        """End; return how many statements there were, and the seconds that they took."""
        self._say("stop")
        assert self._process.stdout is not None  # noqa: S101 - a pipe was asked for
        count, seconds = json.loads(self._process.stdout.readline())
        return count, seconds

    def _say(self, word: str) -> None:
        assert self._process.stdin is not None  # noqa: S101 - a pipe was asked for
        self._process.stdin.write(f"{word}\n")
        self._process.stdin.flush()


@contextmanager
def _reader(address: str) -> Iterator[_Reader]:
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.statements", address],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield _Reader(process)
    finally:
        process.terminate()
        process.wait(10)


async def _settled(orchestrator: str, evaluator: str, public: Path) -> None:
    """Make asks, and wait until their statements are there and are valid."""
    await load.latency(orchestrator, load.request(COLLECTION), count=_OBSERVED)
    last = time.monotonic() + _LATE_S
    async with grpc.aio.insecure_channel(evaluator) as channel:
        stub = pb_grpc.EvaluatorServiceStub(channel)
        while True:
            try:
                response = await stub.GetExposureStatement(_request(0), timeout=10)
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.NOT_FOUND or time.monotonic() > last:
                    raise
                await asyncio.sleep(0.1)
            else:
                verify(parse(json_format.MessageToJson(response)), public_keys([public]))
                return


class _Control:
    """How much processor time stands for one statement's caller, from what both have taken so far."""

    def __init__(self) -> None:
        self._calls, self._called_s = 0, 0.0
        self._burnt, self._burnt_s, self._wanted_s = 0, 0.0, 0.0
        self.each_s = 0.0

    def called(self, count: int, seconds: float) -> None:
        """Take in what the caller of ``count`` statements took."""
        self._calls, self._called_s = self._calls + count, self._called_s + seconds
        self._set()

    def burnt(self, count: int, seconds: float) -> None:
        """Take in what was taken for ``count`` times `each_s`: the pace takes some of it."""
        self._burnt, self._burnt_s = self._burnt + count, self._burnt_s + seconds
        self._wanted_s += count * self.each_s
        self._set()

    def _set(self) -> None:
        pace_s = (self._burnt_s - self._wanted_s) / self._burnt if self._burnt else 0.0
        self.each_s = max(0.0, self._called_s / self._calls - pace_s) if self._calls else 0.0


async def _calibrated(reader: _Reader) -> _Control:
    """Return a control that knows both; the caller's first statements, with its connection, do not count."""
    control = _Control()
    for counted in (False, True):
        calling = load.cpu_s(reader.pid)
        reader.go()
        await asyncio.sleep(_CALIBRATION_S)
        got, _ = await asyncio.to_thread(reader.stop)
        if counted:
            control.called(got, load.cpu_s(reader.pid) - calling)
    calling = load.cpu_s(reader.pid)
    reader.burn(1e3 * control.each_s)
    await asyncio.sleep(_CALIBRATION_S)
    got, _ = await asyncio.to_thread(reader.stop)
    control.burnt(got, load.cpu_s(reader.pid) - calling)
    return control


async def _measured(target: str, reader: _Reader, pid: int, rounds: int, count: int) -> Beside:
    wanted = load.request(COLLECTION)
    control = await _calibrated(reader)
    p50: dict[str, list[float]] = {"beside": [], "burnt": [], "alone": []}
    stated, seconds, spent_s, called_s = 0, 0.0, 0.0, 0.0
    burnt, burnt_s = 0, 0.0
    for turn in range(rounds):
        names = list(p50)[turn % 3 :] + list(p50)[: turn % 3]
        for name in names:
            before, calling = load.cpu_s(pid), load.cpu_s(reader.pid)
            if name == "beside":
                reader.go()
            elif name == "burnt":
                reader.burn(1e3 * control.each_s)
            if name != "alone":
                await asyncio.sleep(_WARM_UP_S)
            p50[name].append((await load.latency(target, wanted, count=count)).p50)
            if name != "alone":
                got, took = await asyncio.to_thread(reader.stop)
            spent, called = load.cpu_s(pid) - before, load.cpu_s(reader.pid) - calling
            if name == "beside":
                stated, seconds = stated + got, seconds + took
                called_s, spent_s = called_s + called, spent_s + spent
                control.called(got, called)
            elif name == "burnt":
                burnt, burnt_s = burnt + got, burnt_s + called
                control.burnt(got, called)
            elif name == "alone":
                spent_s -= spent  # The asks of both have observations, as many.
    return Beside(
        median(p50["alone"]),
        median(p50["burnt"]),
        median(p50["beside"]),
        median(_ratios(p50["burnt"], p50["alone"])),
        median(_ratios(p50["beside"], p50["burnt"])),
        _median_interval(_ratios(p50["beside"], p50["burnt"])),
        median(_ratios(p50["beside"], p50["alone"])),
        60 * stated / seconds,
        1e3 * spent_s / stated,
        1e3 * called_s / stated,
        1e3 * burnt_s / burnt,
        rounds,
    )


def _ratios(first: list[float], second: list[float]) -> list[float]:
    return [one / other for one, other in zip(first, second, strict=True)]


def _median_interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the values between which the median lies in 95 % of samples, by the sign test."""
    ranked = sorted(values)
    cut = max(0, int(binom.ppf(0.025, len(ranked), 0.5)) - 1)
    return ranked[cut], ranked[-1 - cut]


def _request(number: int) -> pb.GetExposureStatementRequest:
    return pb.GetExposureStatementRequest(provider=f"provider {number % 10}", nonce=f"n{number}")


async def _ask_for_statements(address: str) -> None:
    """Ask, or burn, at an even pace between `go` or `burn` and `stop`, whatever the answers take."""
    load.leave_to_others()
    async with grpc.aio.insecure_channel(address) as channel:
        stub = pb_grpc.EvaluatorServiceStub(channel)

        async def state(number: int) -> None:
            await stub.GetExposureStatement(_request(number), timeout=30)

        while words := (await asyncio.to_thread(sys.stdin.readline)).split():
            stop = asyncio.create_task(asyncio.to_thread(sys.stdin.readline))
            one = state if words[0] == "go" else partial(_burn, float(words[1]))
            print(json.dumps(await _paced(one, stop)), flush=True)


async def _paced(one: Callable[[int], Awaitable[None]], stop: asyncio.Task[str]) -> tuple[int, float]:
    """Begin one thing after the other at the pace until ``stop``; return how many, and the seconds."""
    began, calls = time.monotonic(), set[asyncio.Future[None]]()
    number = done = 0
    while not stop.done():
        calls.add(asyncio.ensure_future(one(number)))
        number += 1
        await asyncio.sleep(max(0.0, began + number * 60 / PER_MINUTE - time.monotonic()))
        ended = {call for call in calls if call.done()}
        for call in ended:
            call.result()
        done += len(ended)
        calls -= ended
    await asyncio.gather(*calls)
    return done + len(calls), time.monotonic() - began


async def _burn(milliseconds: float, _: int) -> None:
    """Spend processor time."""
    last = time.thread_time() + milliseconds / 1e3
    while time.thread_time() < last:
        pass


if __name__ == "__main__":
    asyncio.run(_ask_for_statements(sys.argv[1]))
