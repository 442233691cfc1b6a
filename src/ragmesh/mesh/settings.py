"""How to run a mesh on this machine."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ragmesh.home import home as default_home
from ragmesh.mesh.machine import usable_cores
from ragmesh.mesh.services import SERVICES, TRAINER, Service

HOST: Final = "127.0.0.1"
"""An embedded mesh is for this machine only."""

DEFAULT_PORT: Final = 7070
DEFAULT_GRACE_S: Final = 10.0

_THREAD_VARIABLES: Final = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "NUMBA_NUM_THREADS",
)


@dataclass(frozen=True, slots=True)
class MeshSettings:
    """How to run a mesh on this machine.

    Attributes:
        home: directory everything lives under.
        port: the orchestrator's; the others follow it. 0 lets the system choose them all.
        start_s: seconds in which every service must be serving; the first start on a slow disk takes longest.
        grace_s: seconds that running calls get when the mesh stops.
        backoff_s: seconds before a crashed service is started again; doubles with every crash in a row.
        max_backoff_s: most seconds between two starts.
        stable_s: seconds of service after which a crash counts as the first again.
        environment: variables for the services, over those of this process.
        services: what to run.
    """

    home: Path = field(default_factory=default_home)
    port: int = DEFAULT_PORT
    start_s: float = 300.0
    grace_s: float = DEFAULT_GRACE_S
    backoff_s: float = 0.5
    max_backoff_s: float = 30.0
    stable_s: float = 60.0
    environment: Mapping[str, str] = field(default_factory=dict)
    services: tuple[Service, ...] = SERVICES

    @property
    def logs(self) -> Path:
        """Directory of the services' logs."""
        return self.home / "logs"


def threads_of(service: Service, base: Mapping[str, str]) -> int:
    """Threads a service's model computes with, 1 or more.

    ``OMP_NUM_THREADS`` of the environment ``base`` if it is set, or else half of the cores: two services may
    well compute for different asks at the same time, and more threads than free cores cost far more than
    fewer threads do.
    """
    if not service.thread_settings:
        return 1
    wanted = base.get(_THREAD_VARIABLES[0], "")
    return int(wanted) if wanted.isdecimal() and int(wanted) > 0 else max(1, usable_cores() // 2)


def service_environment(
    service: Service,
    settings: MeshSettings,
    ports: Mapping[str, int],
    *,
    base: Mapping[str, str],
    supervisor_pid: int,
) -> dict[str, str]:
    """The whole environment of one service's process.

    Args:
        service: which.
        settings: of the mesh.
        ports: port of every service.
        base: the environment to start from; thread counts set there are kept.
        supervisor_pid: the process that, when it is gone, takes the service along.
    """
    threads = str(threads_of(service, base))
    environment = dict.fromkeys(_THREAD_VARIABLES, threads) | {"TOKENIZERS_PARALLELISM": "false"}
    environment |= {f"{service.prefix}{setting.upper()}": threads for setting in service.thread_settings}
    if "triton" in service.needs:
        environment |= _over_tls({**base, **settings.environment})
    if TRAINER in settings.services:
        # What learns online begins with a cross-encoder, and one ships.
        environment["RAGMESH_RERANKER_CROSS_ENCODER"] = "bundled"
    environment.update(base)
    environment |= {
        "RAGMESH_HOME": str(settings.home),
        "PYTHONUNBUFFERED": "1",
        f"{service.prefix}HOST": HOST,
        f"{service.prefix}PORT": str(ports[service.name]),
        f"{service.prefix}GRACE_S": str(settings.grace_s),
        f"{service.prefix}EXIT_WITH_PARENT": "true",
        f"{service.prefix}PARENT_PID": str(supervisor_pid),
    }
    schemes = {one.name: one.scheme for one in settings.services}
    environment |= {
        f"{service.prefix}{needed.upper()}_TARGET": f"{schemes[needed]}{HOST}:{ports[needed]}"
        for needed in service.needs
    }
    environment |= {f"{service.prefix}{name.upper()}": value for name, value in service.settings}
    return {**environment, **settings.environment}


def _over_tls(given: Mapping[str, str]) -> dict[str, str]:
    """How the generator speaks with a Triton server beside it, which speaks TLS where the mesh does."""
    if not given.get("RAGMESH_TLS_CERT"):
        return {}
    names = {"TLS_CERT": "CERTIFICATE_CHAIN", "TLS_KEY": "PRIVATE_KEY", "TLS_CA": "ROOT_CERTIFICATES"}
    files = {
        f"RAGMESH_GENERATOR_TRITON_{ours}": given[f"RAGMESH_{name}"]
        for name, ours in names.items()
        if given.get(f"RAGMESH_{name}", "") not in ("", "system")
    }
    return {"RAGMESH_GENERATOR_TRITON_SSL": "true", **files}
