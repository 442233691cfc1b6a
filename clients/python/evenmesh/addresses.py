"""Find the five services."""

import logging
import os
import sys
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final, Self

from evenmesh.home import VARIABLE
from evenmesh.home import home as default_home
from evenmesh.services import SERVICES

VARIABLES: Final = {service: f"EVENMESH_CLIENT_{service.upper()}_TARGET" for service in SERVICES}
"""Environment variable that overrides each service's address."""

_log = logging.getLogger("evenmesh.client")


@dataclass(frozen=True, slots=True)
class Addresses:
    """Address of each service: ``host:port``, or any gRPC target such as ``dns:///mesh.example:7070``."""

    orchestrator: str = "127.0.0.1:7070"
    retriever: str = "127.0.0.1:7071"
    reranker: str = "127.0.0.1:7072"
    generator: str = "127.0.0.1:7073"
    evaluator: str = "127.0.0.1:7074"

    @classmethod
    def find(cls, home: Path | None = None, *, orchestrator: str = "") -> Self:
        """Return where the services are, as far as this machine knows; ``orchestrator`` names that one.

        First comes ``EVENMESH_CLIENT_<SERVICE>_TARGET``, then the mesh that ``evenmesh up`` runs under
        ``home`` (default: ``EVENMESH_HOME``), then the default ports of this machine. These may be another's
        mesh: where ``EVENMESH_HOME`` is set and no mesh of it runs, or where this user cannot see whether one
        runs, a warning is logged.
        """
        named = {service: os.environ[name] for service, name in VARIABLES.items() if os.environ.get(name)}
        if orchestrator:
            named["orchestrator"] = orchestrator
        found, problem = _look(home)
        if not problem and not found and (chosen := os.environ.get(VARIABLE)):
            problem = f"no mesh of {VARIABLE}={chosen} runs"
        if problem and not named:
            _log.warning("%s: calling the default ports of this machine", problem)
        found.update(named)
        return cls(**{field.name: found[field.name] for field in fields(cls) if field.name in found})

    def items(self) -> list[tuple[str, str]]:
        """Return pairs of service and address, the orchestrator first."""
        return [(field.name, getattr(self, field.name)) for field in fields(self)]


def running_here(home: Path | None = None) -> dict[str, str]:
    """Return the addresses of the mesh that runs on this machine; none on Windows, where none can run.

    Args:
        home: its home. Default: ``EVENMESH_HOME``.
    """
    return _look(home)[0]


def _look(home: Path | None) -> tuple[dict[str, str], str]:
    """Return the addresses of the mesh that runs under a home, and why it cannot be seen, if so."""
    if sys.platform == "win32":
        return {}, ""
    from evenmesh.local_mesh import LocalMeshError, read_running  # locks files as POSIX does

    try:
        state = read_running(home or default_home())
    except LocalMeshError as error:  # a client of a mesh elsewhere needs no home
        return {}, str(error)
    return ({} if state is None else state.addresses), ""
