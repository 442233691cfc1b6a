"""Check the health of the services that no client calls."""

import asyncio

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from evenmesh.local_mesh import MeshState
from evenmesh.types.status import Health, ServiceStatus
from evenmesh.wire.channel import connect

_TIMEOUT_S = 2.0


async def inner_services(state: MeshState) -> list[ServiceStatus]:
    """Return the health of Triton and the trainer, where the mesh has them."""
    inner = {name: one.address for name, one in state.services.items() if name not in state.addresses}
    return await asyncio.gather(*(_status(name, address) for name, address in inner.items()))


async def _status(service: str, address: str) -> ServiceStatus:
    async with connect(address, service=health_pb2.DESCRIPTOR.package) as channel:
        try:
            reply = await health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(), timeout=_TIMEOUT_S
            )
        except grpc.aio.AioRpcError:
            return ServiceStatus(service, address, Health.UNREACHABLE)
    serving = reply.status == health_pb2.HealthCheckResponse.SERVING
    return ServiceStatus(service, address, Health.SERVING if serving else Health.NOT_SERVING)
