"""Processes that the gateway starts while it serves and calls begin, and do not crash on their way."""

from __future__ import annotations

import subprocess
import sys
from typing import Final

PROCESSES: Final = 200
"""Of which five crashed, in the mean, before gRPC's handlers of forks were off."""
SERVICE: Final = f"""
import asyncio
import sys

import evenmesh_gateway  # before gRPC, as in its process
import grpc

from evenmesh_kit.rpc.server import run


async def echo(request, context):
    await asyncio.sleep(0.01)
    return request


async def main():
    methods = {{"Echo": grpc.unary_unary_rpc_method_handler(echo)}}
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test", methods),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    own = [("grpc.use_local_subchannel_pool", 1)]
    channels = [grpc.aio.insecure_channel(f"127.0.0.1:{{port}}", options=own) for _ in range(3)]

    async def call(channel):
        while True:
            await channel.unary_unary("/test/Echo")(b"x")
            await asyncio.sleep(0.02)

    calling = [asyncio.create_task(call(one)) for one in channels]
    ended = []
    for _ in range({PROCESSES}):
        process = await asyncio.create_subprocess_exec("/bin/true")
        ended.append(await process.wait())
    for one in calling:
        one.cancel()
    await asyncio.gather(*calling, return_exceptions=True)
    await server.stop(0)
    print(sorted(set(ended)))


sys.exit(run(main))
"""


def test_processes_started_beside_calls_begin() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SERVICE], capture_output=True, text=True, check=False, timeout=300
    )
    assert (done.stdout.strip(), done.returncode) == ("[0]", 0), done.stderr
