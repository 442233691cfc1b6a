"""Check that a caller acts as no other agent than those that its credential is bound to."""

from __future__ import annotations

from typing import Final

from evenmesh.wire.errors import PermissionDenied
from evenmesh_kit.security import audit
from evenmesh_kit.security import caller as callers

_SHOWN: Final = 3


def may(task_id: str, model_id: str) -> bool:
    """Return whether the caller may act as an agent; without ids it acts as none, which everyone may."""
    bound = callers.current().agents
    return bound is None or not (task_id or model_id) or (task_id, model_id) in bound


def check(task_id: str, model_id: str, field: str = "agent") -> None:
    """Check that the caller may act as an agent.

    Args:
        task_id: task of the agent.
        model_id: its model.
        field: where the request names it, for the error.

    Raises:
        PermissionDenied: its credential is bound to other agents.
    """
    if not may(task_id, model_id):
        raise _denied(field)


def check_all(field: str = "agent") -> None:
    """Check that the caller may act on all agents of its tenant.

    Raises:
        PermissionDenied: its credential is bound to some of them.
    """
    if callers.current().agents is not None:
        raise _denied(field)


def _denied(field: str) -> PermissionDenied:
    audit.denied("OTHER_AGENT")
    names = sorted(map(str, callers.current().agents or ()))
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return PermissionDenied(
        f"this credential may act only as {', '.join(names[:_SHOWN])}{more}: name the task and the model of "
        "such an agent, or use a credential of another one",
        field=field,
    )
