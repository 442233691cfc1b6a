"""What telemetry costs an ask: two real meshes with stand-in models, one that tells a collector, in turn.

``python -m benchmarks.telemetry`` measures and prints.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterator
from concurrent import futures
from dataclasses import dataclass
from statistics import median

import grpc

from benchmarks import load
from benchmarks.mesh import CALLERS, COLLECTION, real_mesh

HEADING = "Telemetry on and off"
RATIO = 0.1
"""Share of traces that are recorded."""
_SERVICES = ("ORCHESTRATOR", "RETRIEVER", "RERANKER", "GENERATOR", "EVALUATOR")


@dataclass(frozen=True)
class Overhead:
    """Medians over the rounds; ratios are of pairs measured side by side, on over off."""

    off_p50_ms: float
    on_p50_ms: float
    p50_ratio: float
    off_per_s: float
    on_per_s: float
    per_s_ratio: float
    exports: int
    rounds: int


def measure(*, rounds: int = 5, count: int = 200, flows: int = 600) -> Overhead:
    """Starts both meshes and a collector, and measures the meshes in turn."""
    with _collector() as (address, exports):
        with _environment({}), real_mesh() as off, _environment(_told(address)), real_mesh() as on:
            found = asyncio.run(_measured(off, on, rounds, count, flows))
        return Overhead(*found, exports=len(exports), rounds=rounds)


def section(found: Overhead) -> str:
    """What was measured as a section of docs/benchmarks.md."""
    p50 = f"{found.off_p50_ms:.2f} ms | {found.on_p50_ms:.2f} ms | {found.p50_ratio:.2f}"
    per_s = f"{found.off_per_s:.0f} | {found.on_per_s:.0f} | {found.per_s_ratio:.2f}"
    return f"""An ask through two meshes of five processes, models replaced by ones that answer at once. One
sends traces ({RATIO:.0%} of them recorded) and metrics to a collector on this machine, which got
{found.exports:,} exports meanwhile. Medians of {found.rounds} rounds, the meshes in turn.

| | off | on | on / off | target |
|---|---|---|---|---|
| p50, one caller | {p50} | ≤ 1.1 |
| asks per second, {CALLERS} callers | {per_s} | ≥ 0.9 |"""


async def _measured(
    off: str, on: str, rounds: int, count: int, flows: int
) -> tuple[float, float, float, float, float, float]:
    ask = load.request(COLLECTION)
    for target in (off, on):
        await load.throughput(target, ask, callers=8, count=100)
    p50: dict[str, list[float]] = {off: [], on: []}
    per_s: dict[str, list[float]] = {off: [], on: []}
    for turn in range(rounds):
        order = (off, on) if turn % 2 else (on, off)
        for target in order:
            p50[target].append((await load.latency(target, ask, count=count)).p50)
        for target in order:
            per_s[target].append(await load.throughput(target, ask, callers=CALLERS, count=flows))
    return (
        median(p50[off]),
        median(p50[on]),
        median(b / a for a, b in zip(p50[off], p50[on], strict=True)),
        median(per_s[off]),
        median(per_s[on]),
        median(b / a for a, b in zip(per_s[off], per_s[on], strict=True)),
    )


def _told(address: str) -> dict[str, str]:
    found = {f"RAGMESH_{name}_OTLP_ENDPOINT": f"http://{address}" for name in _SERVICES}
    return found | {f"RAGMESH_{name}_TRACE_SAMPLE_RATIO": str(RATIO) for name in _SERVICES}


@contextlib.contextmanager
def _environment(given: dict[str, str]) -> Iterator[None]:
    """Within it, meshes that are started have these variables."""
    before = dict(os.environ)
    os.environ.update(given)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextlib.contextmanager
def _collector() -> Iterator[tuple[str, list[str]]]:
    """A collector that takes all exports and keeps their names."""
    exports: list[str] = []

    class Everything(grpc.GenericRpcHandler):
        def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes]:
            def take(_request: bytes, _context: grpc.ServicerContext) -> bytes:
                exports.append(str(details.method))
                return b""

            return grpc.unary_unary_rpc_method_handler(take)

    server = grpc.server(futures.ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers((Everything(),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}", exports
    finally:
        server.stop(1).wait()


def main() -> None:
    """Measures and prints."""
    print(f"## {HEADING}\n\n{section(measure())}")


if __name__ == "__main__":
    main()
