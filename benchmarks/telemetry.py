"""Measure what telemetry costs an ask: two real meshes with stand-in models, one with a collector."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from concurrent import futures

import grpc

from benchmarks.mesh import CALLERS, SideBySide, real_mesh, side_by_side

HEADING = "Telemetry on and off"
RATIO = 0.1
"""Share of traces that are recorded."""
_SERVICES = ("ORCHESTRATOR", "RETRIEVER", "RERANKER", "GENERATOR", "EVALUATOR")


def measure(*, rounds: int = 5, count: int = 200, flows: int = 600) -> tuple[SideBySide, int]:
    """Return the mesh without telemetry beside that with it, and how much the collector got."""
    with _collector() as (address, exports):
        with real_mesh() as off, real_mesh(_exporting_to(address)) as on:
            found = asyncio.run(side_by_side(off, on, rounds, count, flows))
        return found, len(exports)


def section(measured: tuple[SideBySide, int]) -> str:
    """Return what was measured as a section of docs/science/benchmarks.md."""
    found, exports = measured
    p50 = f"{found.first_p50_ms:.2f} ms | {found.second_p50_ms:.2f} ms | {found.p50_ratio:.2f}"
    per_s = f"{found.first_per_s:.0f} | {found.second_per_s:.0f} | {found.flows_ratio:.2f}"
    return f"""An ask through two meshes of five processes, models replaced by ones that answer at once. One
sends traces ({RATIO:.0%} of them recorded) and metrics to a collector on this machine, which got
{exports:,} exports meanwhile. Medians of {found.rounds} rounds, the meshes in turn.

| | off | on | on / off | target |
|---|---|---|---|---|
| p50, one caller | {p50} | ≤ 1.1 |
| asks per second, {CALLERS} callers | {per_s} | ≥ 0.9 |"""


def _exporting_to(address: str) -> dict[str, str]:
    found = {f"EVENMESH_{name}_OTLP_ENDPOINT": f"http://{address}" for name in _SERVICES}
    return found | {f"EVENMESH_{name}_TRACE_SAMPLE_RATIO": str(RATIO) for name in _SERVICES}


@contextlib.contextmanager
def _collector() -> Iterator[tuple[str, list[str]]]:
    """Yield a collector that takes all exports and keeps their names."""
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
