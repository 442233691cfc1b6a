"""What 10,000 statements a minute cost asks: a mesh with stand-in models, alone and beside them in turn.

``python -m benchmarks.statements ADDRESS`` is the process that asks the evaluator there for statements: `go`
on its standard input begins, `stop` ends and prints how many it got, within which time.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

import grpc
from google.protobuf import json_format

from benchmarks import load
from benchmarks.mesh import COLLECTION, ingest, stand_in_mesh
from evenmesh.evaluator.v1 import evaluator_service_pb2 as pb
from evenmesh.evaluator.v1 import evaluator_service_pb2_grpc as pb_grpc
from evenmesh.statements import new_key, parse, public_keys, verify

HEADING: Final = "Statements beside asks"
PER_MINUTE: Final = 10_000
_WARM_UP_S: Final = 1.0
_OBSERVED: Final = 40
_LATE_S: Final = 30.0


@dataclass(frozen=True)
class Beside:
    """Asks alone and beside statements, medians over the rounds.

    Attributes:
        alone_ms: p50 of asks alone. Milliseconds.
        beside_ms: p50 of asks beside statements. Milliseconds.
        ratio: median of the rounds' ratios.
        per_minute: statements that the evaluator gave in a minute, while it was asked for them.
        evaluator: CPU of the evaluator for a statement, less what the asks take it. Milliseconds.
        caller: CPU of the caller for a statement. Milliseconds.
        rounds: of both.
    """

    alone_ms: float
    beside_ms: float
    ratio: float
    per_minute: float
    evaluator: float
    caller: float
    rounds: int


def measure(*, rounds: int = 15, count: int = 100) -> Beside:
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
    return f"""Asks (64 tokens streamed, one observation) with one caller, by a mesh of five processes
whose models answer at once, alone and while another process asks the evaluator for {PER_MINUTE:,} signed
statements a minute, of ten providers in turn. Medians of {found.rounds} rounds, the two in turn. Both callers
share the machine's cores with the mesh; the one of statements, a provider's program elsewhere, has the
lowest priority.

| | alone | beside statements | ratio | target |
|---|---|---|---|---|
| p50, one caller | {found.alone_ms:.2f} ms | {found.beside_ms:.2f} ms | {found.ratio:.2f} | ≤ 1.05 |
| statements a minute | | {found.per_minute:,.0f} | | {PER_MINUTE:,} |
| the evaluator's CPU for one | | {found.evaluator:.2f} ms | | |
| the caller's CPU for one | | {found.caller:.2f} ms | | |"""


class _Reader:
    """The process that asks for statements."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        """Return its number."""
        return self._process.pid

    def go(self) -> None:
        """Begin."""
        self._say("go")

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


async def _measured(target: str, reader: _Reader, pid: int, rounds: int, count: int) -> Beside:
    wanted = load.request(COLLECTION)
    p50: dict[bool, list[float]] = {False: [], True: []}
    stated, seconds, spent_s, called_s = 0, 0.0, 0.0, 0.0
    for turn in range(rounds):
        for beside in (False, True) if turn % 2 else (True, False):
            before, calling = load.cpu_s(pid), load.cpu_s(reader.pid)
            if beside:
                reader.go()
                await asyncio.sleep(_WARM_UP_S)
            p50[beside].append((await load.latency(target, wanted, count=count)).p50)
            if beside:
                got, took = await asyncio.to_thread(reader.stop)
                stated, seconds = stated + got, seconds + took
                called_s += load.cpu_s(reader.pid) - calling
            # The asks of both have observations, as many.
            spent_s += (1 if beside else -1) * (load.cpu_s(pid) - before)
    pairs = zip(p50[False], p50[True], strict=True)
    return Beside(
        median(p50[False]),
        median(p50[True]),
        median(second / first for first, second in pairs),
        60 * stated / seconds,
        1e3 * spent_s / stated,
        1e3 * called_s / stated,
        rounds,
    )


def _request(number: int) -> pb.GetExposureStatementRequest:
    return pb.GetExposureStatementRequest(provider=f"provider {number % 10}", nonce=f"n{number}")


async def _ask_for_statements(address: str) -> None:
    """Ask at an even pace between `go` and `stop`, whatever the answers take."""
    load.leave_to_others()
    async with grpc.aio.insecure_channel(address) as channel:
        stub = pb_grpc.EvaluatorServiceStub(channel)
        while (await asyncio.to_thread(sys.stdin.readline)).strip() == "go":
            stop = asyncio.create_task(asyncio.to_thread(sys.stdin.readline))
            began, calls = time.monotonic(), set[asyncio.Task[None]]()
            number = done = 0

            async def one(number: int) -> None:
                await stub.GetExposureStatement(_request(number), timeout=30)

            while not stop.done():
                call = asyncio.create_task(one(number))
                calls.add(call)
                number += 1
                await asyncio.sleep(max(0.0, began + number * 60 / PER_MINUTE - time.monotonic()))
                ended = {call for call in calls if call.done()}
                for call in ended:
                    call.result()
                done += len(ended)
                calls -= ended
            await asyncio.gather(*calls)
            print(json.dumps([done + len(calls), time.monotonic() - began]), flush=True)


if __name__ == "__main__":
    asyncio.run(_ask_for_statements(sys.argv[1]))
