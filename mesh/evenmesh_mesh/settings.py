"""How to run a mesh on this machine."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from evenmesh.home import home as default_home
from evenmesh_lab.machine import usable_cores
from evenmesh_mesh.services import SERVICES, Service

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
    """Settings of a mesh on this machine.

    Attributes:
        home: folder that holds everything.
        port: port of the orchestrator; the others follow it. 0 lets the system choose all of them.
        start_s: time within which every service must serve. Seconds.
        grace_s: time that running calls get when the mesh stops. Seconds.
        backoff_s: delay before a crashed service is restarted; it doubles with every consecutive crash.
            Seconds.
        max_backoff_s: largest delay. Seconds.
        stable_s: uptime after which a crash counts as the first again. Seconds.
        environment: variables for the services; they override those of this process.
        services: the services to run.
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
        """Folder of the services' logs."""
        return self.home / "logs"


def threads_of(service: Service, base: Mapping[str, str]) -> int:
    """Return the number of compute threads of a service's model, 1 or more.

    This is ``OMP_NUM_THREADS`` of the environment ``base`` where it is set, and half of the cores otherwise:
    two services often compute at the same time, and more threads than free cores cost far more than fewer do.
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
    """Return the complete environment of one service's process.

    Args:
        service: the service.
        settings: settings of the mesh.
        ports: port of every service.
        base: environment to start from; its thread counts are kept.
        supervisor_pid: the service ends when this process is gone.
    """
    threads = str(threads_of(service, base))
    environment = dict.fromkeys(_THREAD_VARIABLES, threads) | {"TOKENIZERS_PARALLELISM": "false"}
    environment |= {f"{service.prefix}{setting.upper()}": threads for setting in service.thread_settings}
    if "triton" in service.needs:
        environment |= _over_tls({**base, **settings.environment})
    environment.update(base)
    environment |= {
        "EVENMESH_HOME": str(settings.home),
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


def overridden(settings: MeshSettings, base: Mapping[str, str]) -> list[str]:
    """Return the variables of an environment that mean nothing to a mesh of one machine, which sets its own.

    They are addresses, ports and grace of its services.
    """
    fixed: dict[str, str] = {}
    for service in settings.services:
        fixed[f"{service.prefix}HOST"] = HOST
        fixed[f"{service.prefix}PORT"] = str(settings.port + service.offset)
        fixed[f"{service.prefix}GRACE_S"] = f"{settings.grace_s:g}"
        fixed |= {f"{service.prefix}{needed.upper()}_TARGET": "" for needed in service.needs}
    return sorted(name for name, value in fixed.items() if base.get(name, value) != value)


def _over_tls(given: Mapping[str, str]) -> dict[str, str]:
    """Return the TLS settings between the generator and its Triton server, where the mesh uses TLS."""
    if not given.get("EVENMESH_TLS_CERT"):
        return {}
    names = {"TLS_CERT": "CERTIFICATE_CHAIN", "TLS_KEY": "PRIVATE_KEY", "TLS_CA": "ROOT_CERTIFICATES"}
    files = {
        f"EVENMESH_GENERATOR_TRITON_{ours}": given[f"EVENMESH_{name}"]
        for name, ours in names.items()
        if given.get(f"EVENMESH_{name}", "") not in ("", "system")
    }
    return {"EVENMESH_GENERATOR_TRITON_SSL": "true", **files}
