"""Who calls: what a credential proves, known to everything a call runs."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from meshkit import checks
from meshkit.errors import InvalidField


class Role(StrEnum):
    """What a credential allows. A method is open to some roles; ADMIN may everything, and so may SERVICE."""

    ASK = "ask"
    """Ask, retrieve, rerank, generate, evaluate; read what a tenant has."""
    INGEST = "ingest"
    """Make, fill, empty and remove collections."""
    FEEDBACK = "feedback"
    """Give feedback and register agents."""
    TRAIN = "train"
    """Read feedback, promote and roll back models."""
    ADMIN = "admin"
    """Everything, within its tenant."""
    SERVICE = "service"
    """Another service of this mesh: everything, for the tenant that it names."""


DEFAULT_TENANT: Final = "default"
"""The tenant of callers whose credential names none."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Someone whose credential was checked.

    Attributes:
        name: whom the credential was given to; for logs.
        tenant: whose collections, runs, feedback and models are meant.
        roles: what is allowed.
    """

    name: str
    tenant: str
    roles: frozenset[Role]

    def may(self, allowed: frozenset[Role]) -> bool:
        """Whether a method that is open to those roles is open to this caller."""
        return bool(self.roles & (allowed | {Role.ADMIN, Role.SERVICE}))


ANYONE: Final = Caller("anyone", DEFAULT_TENANT, frozenset(Role))
"""The caller of a service that asks for no credentials."""

_current: ContextVar[Caller] = ContextVar("ragmesh_caller", default=ANYONE)


def current() -> Caller:
    """Who calls; :data:`ANYONE` outside a call, and where no credentials are asked for."""
    return _current.get()


def enter(caller: Caller) -> None:
    """Makes ``caller`` the one who calls, for the rest of this task."""
    _current.set(caller)


def tenant_name(value: str, where: str) -> str:
    """Reads a tenant's name.

    Raises:
        InvalidField: it is none: letters, digits, ``-`` and ``_`` are allowed, as in a collection's.
    """
    if not value:
        raise InvalidField(where, "must name a tenant")
    return checks.name(where, value)
