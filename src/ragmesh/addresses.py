"""Where the five services are."""

import os
import sys
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final, Self

from ragmesh.home import home as default_home

VARIABLES: Final = {
    service: f"RAGMESH_CLIENT_{service.upper()}_TARGET"
    for service in ("orchestrator", "retriever", "reranker", "generator", "evaluator")
}
"""Environment variable that overrides each service's address."""


@dataclass(frozen=True, slots=True)
class Addresses:
    """Address of each service: ``host:port``, or any gRPC target such as ``dns:///mesh.example:7070``."""

    orchestrator: str = "127.0.0.1:7070"
    retriever: str = "127.0.0.1:7071"
    reranker: str = "127.0.0.1:7072"
    generator: str = "127.0.0.1:7073"
    evaluator: str = "127.0.0.1:7074"

    @classmethod
    def find(cls, home: Path | None = None) -> Self:
        """Where the services are, by what is known here.

        First ``RAGMESH_CLIENT_<SERVICE>_TARGET``, then the mesh that ``ragmesh up`` runs under ``home``
        (default: ``RAGMESH_HOME``), then the default ports of this machine.
        """
        found = _running(home or default_home())
        found.update(
            {service: os.environ[name] for service, name in VARIABLES.items() if os.environ.get(name)}
        )
        return cls(**{field.name: found[field.name] for field in fields(cls) if field.name in found})

    def items(self) -> list[tuple[str, str]]:
        """Service and address, the orchestrator first."""
        return [(field.name, getattr(self, field.name)) for field in fields(self)]


def _running(home: Path) -> dict[str, str]:
    """Addresses of the mesh that runs on this machine; none where a mesh cannot be embedded."""
    if sys.platform == "win32":
        return {}
    from ragmesh.mesh.state import read_running  # locks files as POSIX does

    state = read_running(home)
    return {} if state is None else state.addresses
