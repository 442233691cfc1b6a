"""How a service is."""

from dataclasses import dataclass
from enum import StrEnum


class Health(StrEnum):
    """What a service says of itself, or that it says nothing."""

    SERVING = "serving"
    NOT_SERVING = "not serving"
    UNREACHABLE = "unreachable"


@dataclass(frozen=True, slots=True)
class ServiceStatus:
    """Health of one service of the mesh: its short name, where it was looked for, and how it is."""

    service: str
    address: str
    health: Health
