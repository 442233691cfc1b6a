# The public names, each once: __init__.py loads them from here when they are first used.
# ruff: isort: skip_file

from evenmesh_mesh.detached import MeshStopError as MeshStopError, launch as launch, stop as stop
from evenmesh_mesh.progress import Phase as Phase, Progress as Progress
from evenmesh_mesh.services import (
    SERVICES as SERVICES,
    GeneratorEngine as GeneratorEngine,
    Service as Service,
    services_with as services_with,
)
from evenmesh_mesh.settings import MeshSettings as MeshSettings
from evenmesh_mesh.supervisor import Mesh as Mesh, MeshStartError as MeshStartError
