"""The caller of the running call: its name, tenant, roles and agents, as its credential proves them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextvars import ContextVar
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple, Self

from evenmesh.wire import checks
from evenmesh.wire.credentials import acting_as, acting_for
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
    """Read feedback; promote models and roll them back; delete agents."""
    PROVIDER = "provider"
    """Read the exposure statements of the one provider that the credential names, and nothing else."""
    ADMIN = "admin"
    """Everything, within its tenant."""
    SERVICE = "service"
    """Everything, for the tenant that the call names: another service of this mesh."""


DEFAULT_TENANT: Final = "default"
"""Tenant of callers whose credential names none, and of data without a tenant."""


MAX_AGENTS_BYTES: Final = 4096
"""Most bytes of the names of all agents that one credential is bound to: metadata has to carry them."""
_MAX_ID_BYTES: Final = 128
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")


class AgentName(NamedTuple):
    """The ids of an agent that a credential is bound to, written ``TASK/MODEL``."""

    task_id: str
    model_id: str

    def __str__(self) -> str:
        return f"{self.task_id}/{self.model_id}"

    @classmethod
    def read(cls, text: str, where: str) -> Self:
        """Return the agent of a text; the task ends at the first slash, as names of models often have one.

        Raises:
            InvalidField: an id is missing, longer than 128 bytes, or has control characters.
        """
        task_id, _, model_id = text.partition("/")
        try:
            sizes = [len(one.encode()) for one in (task_id, model_id)]
        except UnicodeEncodeError:
            sizes = [0]
        if not all(1 <= size <= _MAX_ID_BYTES for size in sizes) or _CONTROL.search(text):
            raise InvalidField(
                where,
                f"must be TASK/MODEL, each of 1 to {_MAX_ID_BYTES} bytes without control characters, got "
                f"{text[:_MAX_ID_BYTES]!r}",
            )
        return cls(task_id, model_id)


@dataclass(frozen=True, slots=True)
class Caller:
    """An authenticated caller.

    Attributes:
        name: holder of the credential; for logs.
        tenant: owner of the collections, runs, feedback and models that the call is about.
        roles: permissions.
        provider: the provider whose statements :attr:`Role.PROVIDER` may read; empty for none.
        agents: the only agents of the tenant that it may act as; None: any.
    """

    name: str
    tenant: str
    roles: frozenset[Role]
    provider: str = ""
    agents: frozenset[AgentName] | None = None

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
    acting_as.set("\n".join(sorted(map(str, caller.agents or ()))))


def agent_names(values: Iterable[str], where: str) -> frozenset[AgentName]:
    """Return the agents that a credential names.

    Raises:
        InvalidField: there are none, too many, or one is invalid.
    """
    found = frozenset(AgentName.read(value, where) for value in values)
    if not found:
        raise InvalidField(where, "must name an agent, or be left out: then it may act as every agent")
    size = sum(len(str(one).encode()) + 1 for one in found)
    if size > MAX_AGENTS_BYTES:
        raise InvalidField(where, f"must have at most {MAX_AGENTS_BYTES} bytes in all, has {size}")
    return found


def tenant_name(value: str, where: str) -> str:
    """Return a tenant's name after checking it.

    Raises:
        InvalidField: it is empty, or has other characters than a-z, 0-9, ``-`` and ``_``.
    """
    if not value:
        raise InvalidField(where, "must name a tenant")
    return checks.name(where, value)
