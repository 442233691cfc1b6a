"""A caller that holds every connection of a service leaves probes their answer: a real process."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.support import ports
from tests.support.killable import Killable
from tests.unit.kit.rpc.test_connection_bounds import PREFACE


class _Owner:
    """What a port is reserved for."""


async def _healthy(address: str, service: str) -> bool:
    """Ask as the kubelet does: over a connection of its own."""
    async with grpc.aio.insecure_channel(address) as channel:
        request = health_pb2.HealthCheckRequest(service=service)
        try:
            reply = await health_pb2_grpc.HealthStub(channel).Check(request, timeout=10)
        except grpc.aio.AioRpcError:
            return False
    return bool(reply.status == health_pb2.HealthCheckResponse.SERVING)


async def test_probes_of_a_service_are_answered_while_one_caller_holds_all_connections(
    tmp_path: Path,
) -> None:
    owner = _Owner()
    health = f"127.0.0.1:{ports.reserve(owner)}"
    settings = {"MAX_CONNECTIONS": "16", "HEALTH_PORT": health.rpartition(":")[2]}
    evaluator = Killable("evenmesh_evaluator", "evaluator", tmp_path, **settings)
    held: list[asyncio.StreamWriter] = []
    try:
        await evaluator.start()
        host, _, port = evaluator.address.rpartition(":")
        async with asyncio.timeout(120):
            # Others may have connections that end soon: until no place is left for one more.
            while await _healthy(evaluator.address, "live"):
                for _ in range(16):
                    _, writer = await asyncio.open_connection(host, int(port))
                    writer.write(PREFACE)
                    held.append(writer)
            for service in ("", "live", "evenmesh.evaluator.v1.EvaluatorService"):
                assert await _healthy(health, service), service
    finally:
        for writer in held:
            writer.close()
        evaluator.kill()
