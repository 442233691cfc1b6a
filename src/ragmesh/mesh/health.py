"""Health of the services of a mesh that no client calls."""

import asyncio

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from meshkit.channel import connect
from ragmesh.mesh.state import MeshState
from ragmesh.status import Health, ServiceStatus

_TIMEOUT_S = 2.0


async def inner_services(state: MeshState) -> list[ServiceStatus]:
    """How Triton and the trainer are, if the mesh has them: like every service they answer health checks."""
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
