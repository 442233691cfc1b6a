"""The caller of the running call: its name, tenant and roles, as its credential proves them."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from evenmesh.wire import checks
from evenmesh.wire.credentials import acting_for
from evenmesh.wire.errors import InvalidField


class Role(StrEnum):
    """Permission that a credential gives. A method is open to some roles, and always to ADMIN and SERVICE."""

    ASK = "ask"
    """Ask, retrieve, rerank, generate and evaluate; read what the tenant has."""
    INGEST = "ingest"
    """Create, fill and delete collections."""
    FEEDBACK = "feedback"
    """Give feedback and register agents."""
    TRAIN = "train"
    """Read feedback; promote models and roll them back."""
    PROVIDER = "provider"
    """Read the exposure statements of the one provider that the credential names, and nothing else."""
    ADMIN = "admin"
    """Everything, within its tenant."""
    SERVICE = "service"
    """Everything, for the tenant that the call names: another service of this mesh."""


DEFAULT_TENANT: Final = "default"
"""Tenant of callers whose credential names none, and of data without a tenant."""


@dataclass(frozen=True, slots=True)
class Caller:
    """An authenticated caller.

    Attributes:
        name: holder of the credential; for logs.
        tenant: owner of the collections, runs, feedback and models that the call is about.
        roles: permissions.
        provider: the provider whose statements :attr:`Role.PROVIDER` may read; empty for none.
    """

    name: str
    tenant: str
    roles: frozenset[Role]
    provider: str = ""

    def may(self, allowed: frozenset[Role]) -> bool:
        """Return whether this caller may call a method that is open to those roles."""
        return bool(self.roles & (allowed | {Role.ADMIN, Role.SERVICE}))


ANYONE: Final = Caller("anyone", DEFAULT_TENANT, frozenset(Role))
"""The caller of a service without authentication."""

_current: ContextVar[Caller] = ContextVar("evenmesh_caller", default=ANYONE)


def current() -> Caller:
    """Return the caller; :data:`ANYONE` outside a call and without authentication."""
    return _current.get()


def enter(caller: Caller) -> None:
    """Make ``caller`` the current one for the rest of this task."""
    _current.set(caller)
    acting_for.set("" if caller is ANYONE else caller.tenant)


def tenant_name(value: str, where: str) -> str:
    """Return a tenant's name after checking it.

    Raises:
        InvalidField: it is empty, or has other characters than a-z, 0-9, ``-`` and ``_``.
    """
    if not value:
        raise InvalidField(where, "must name a tenant")
    return checks.name(where, value)
