"""Check the health of the services that no client of gRPC calls."""

import asyncio
import http.client
import os
import ssl

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from evenmesh.local_mesh import MeshState
from evenmesh.types.status import Health, ServiceStatus
from evenmesh.wire.channel import connect
from evenmesh.wire.security import SYSTEM
from evenmesh_mesh.services import GATEWAY

_TIMEOUT_S = 2.0
_READY = 200


def http_url(address: str) -> str:
    """Return the URL of the gateway at an address; with TLS where callers of this environment use it."""
    return f"{'https' if os.environ.get('EVENMESH_TLS_CA') else 'http'}://{address}"


def console_url(state: MeshState) -> str | None:
    """Return the URL of the console of a mesh; None where it runs no gateway."""
    gateway = state.services.get(GATEWAY.name)
    return None if gateway is None else f"{http_url(gateway.address)}/console/"


async def http_health(address: str) -> Health:
    """Return the health of the gateway at an address."""
    return await asyncio.to_thread(_http_health, address)


def _http_health(address: str) -> Health:
    authorities = os.environ.get("EVENMESH_TLS_CA", "")
    connection = http.client.HTTPConnection(address, timeout=_TIMEOUT_S)
    try:
        if authorities:
            context = ssl.create_default_context(cafile=None if authorities == SYSTEM else authorities)
            if chain := os.environ.get("EVENMESH_TLS_CERT"):
                context.load_cert_chain(chain, os.environ.get("EVENMESH_TLS_KEY"))
            connection = http.client.HTTPSConnection(address, timeout=_TIMEOUT_S, context=context)
        connection.request("GET", "/readyz")
        return Health.SERVING if connection.getresponse().status == _READY else Health.NOT_SERVING
    except (OSError, http.client.HTTPException):
        return Health.UNREACHABLE
    finally:
        connection.close()


async def inner_services(state: MeshState) -> list[ServiceStatus]:
    """Return the health of Triton, the trainer and the gateway, where the mesh has them."""
    inner = {name: one.address for name, one in state.services.items() if name not in state.addresses}
    return await asyncio.gather(*(_status(name, address) for name, address in inner.items()))


async def _status(service: str, address: str) -> ServiceStatus:
    if service == GATEWAY.name:
        return ServiceStatus(service, http_url(address), await http_health(address))
    async with connect(address, service=health_pb2.DESCRIPTOR.package) as channel:
        try:
            reply = await health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(), timeout=_TIMEOUT_S
            )
        except grpc.aio.AioRpcError:
            return ServiceStatus(service, address, Health.UNREACHABLE)
    serving = reply.status == health_pb2.HealthCheckResponse.SERVING
    return ServiceStatus(service, address, Health.SERVING if serving else Health.NOT_SERVING)
