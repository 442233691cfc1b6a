"""The embedded mesh: its services as processes of this machine, started, watched and stopped together.

``async with Mesh(settings) as mesh`` runs one for as long as the block; :func:`launch` and :func:`stop` run
one in the background, as ``ragmesh up --detach`` and ``ragmesh down`` do.
"""

from ragmesh.mesh.detached import MeshStopError, launch, stop
from ragmesh.mesh.progress import Phase, Progress
from ragmesh.mesh.services import SERVICES, GeneratorEngine, Service, services_with
from ragmesh.mesh.settings import MeshSettings
from ragmesh.mesh.state import MeshState, ServiceState, read_running
from ragmesh.mesh.supervisor import Mesh, MeshStartError

__all__ = [
    "SERVICES",
    "GeneratorEngine",
    "Mesh",
    "MeshSettings",
    "MeshStartError",
    "MeshState",
    "MeshStopError",
    "Phase",
    "Progress",
    "Service",
    "ServiceState",
    "launch",
    "read_running",
    "services_with",
    "stop",
]
