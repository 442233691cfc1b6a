"""Time health checks while unknown callers flood a service: ``python -m tests.attack.health``.

For each service a hundred calls at once without a credential, of 31 MiB each, gzip or not, again and again from
a process that yields the processors, as callers have machines of their own.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import grpc
import numpy as np
from grpc_health.v1 import health_pb2, health_pb2_grpc

from evenmesh.wire.channel import connect
from tests.attack.standing import mesh_with_tenants
from tests.support.methods import METHODS
from tests.support.processors import leave_to_others

_SECONDS: Final = 10.0
_EVERY_S: Final = 0.01
_AT_ONCE: Final = 100
_MESSAGE: Final = b"\x0a\x00" * (31 * 2**19)


def main() -> int:
    """Print the times of health checks in quiet and in the flood, for each service."""
    if len(sys.argv) == 3:
        asyncio.run(_flood(*sys.argv[1:]))
        return 0
    with (
        tempfile.TemporaryDirectory(prefix="evenmesh-health-") as home,
        mesh_with_tenants(Path(home)) as mesh,
    ):
        sys.stdout.write("| service | quiet, p99 | flood, p50 | p99 | largest |\n|---|---|---|---|---|\n")
        for name, address in mesh.state.addresses.items():
            quiet = asyncio.run(_checked(address))
            command = [sys.executable, "-m", "tests.attack.health", name, address]
            flood = subprocess.Popen(command, stdout=subprocess.PIPE)
            try:
                assert flood.stdout is not None
                assert flood.stdout.readline() == b"refused\n"
                found = asyncio.run(_checked(address))
                assert flood.poll() is None, "the flood has ended"
            finally:
                flood.kill()
                flood.wait()
            p50, p99 = np.percentile(found, [50, 99])
            sys.stdout.write(
                f"| {name} | {np.percentile(quiet, 99):.1f} ms | {p50:.1f} ms | {p99:.1f} ms | {max(found):.1f} ms |\n"
            )
    return 0


async def _checked(address: str) -> list[float]:
    """Check health again and again; return how long each check took. Milliseconds."""
    found = []
    async with connect(address, service="grpc.health.v1.Health") as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        ends = time.monotonic() + _SECONDS
        while time.monotonic() < ends:
            began = time.perf_counter()
            await stub.Check(health_pb2.HealthCheckRequest(), timeout=60)
            found.append(1e3 * (time.perf_counter() - began))
            await asyncio.sleep(_EVERY_S)
    return found


async def _flood(service: str, address: str) -> None:
    leave_to_others()
    methods = [one for one in METHODS.values() if one.containing_service.full_name.split(".")[1] == service]
    async with connect(address, service=methods[0].containing_service.full_name, retry=False) as channel:
        said = False

        async def caller(number: int) -> None:
            nonlocal said
            method = methods[number % len(methods)]
            start: Any = channel.stream_stream(f"/{method.containing_service.full_name}/{method.name}")
            compression = grpc.Compression.Gzip if number % 2 else None
            while True:
                call = start(iter([_MESSAGE]), timeout=60, compression=compression)
                assert await call.code() is not grpc.StatusCode.OK
                if not said:
                    said = True
                    sys.stdout.write("refused\n")
                    sys.stdout.flush()

        await asyncio.gather(*(caller(number) for number in range(_AT_ONCE)))


if __name__ == "__main__":
    sys.exit(main())
