"""Health of services."""

from dataclasses import dataclass
from enum import StrEnum


class Health(StrEnum):
    """Health that a service reports, or that it cannot be reached."""

    SERVING = "serving"
    NOT_SERVING = "not serving"
    UNREACHABLE = "unreachable"


@dataclass(frozen=True, slots=True)
class ServiceStatus:
    """Health of one service of the mesh, with its short name and its address."""

    service: str
    address: str
    health: Health
