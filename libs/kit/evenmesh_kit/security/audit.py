"""Audit log: who was refused, who deleted or promoted what, and which keys and limits changed.

Every record is one line of the logger ``evenmesh.audit``, whatever the service's ``log_level`` is. It holds
names and no texts or secrets; ``docs/operate/security.md`` documents its fields.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from typing import Any, Final, Literal, TypeVar, cast
from urllib.parse import unquote

from google.protobuf.message import Message

from evenmesh.common.v1.common_pb2 import Agent
from evenmesh.wire.errors import MeshError
from evenmesh.wire.methods import facts_of
from evenmesh_kit.rpc.handlers import Behaviour, Context, Handler, HandlerInterceptor
from evenmesh_kit.security import caller as callers
from evenmesh_kit.security.caller import Caller

T = TypeVar("T")

Event = Literal[
    "login_refused",
    "denied",
    "call",
    "key_added",
    "key_changed",
    "key_removed",
    "token_key_added",
    "token_key_changed",
    "token_key_removed",
    "limits_added",
    "limits_changed",
    "limits_removed",
]
"""What happened: no valid credential; no permission; an audited method ran; an entry of a file changed."""
Kind = Literal["key", "token_key", "limits"]
"""What a reloaded file has entries of."""
Change = Literal["added", "changed", "removed"]
Outcome = Literal["refused", "done", "failed"]

LOGGER: Final = "evenmesh.audit"
_LONGEST: Final = 256
_log = logging.getLogger(LOGGER)
_call: ContextVar[tuple[str, Context] | None] = ContextVar("evenmesh_audited_call", default=None)


def enter(method: str, context: Context) -> None:
    """Make a call the current one for the rest of this task; :func:`denied` names it."""
    _call.set((method, context))


def denied(reason: str) -> None:
    """Record that the current call was denied to its caller."""
    method, peer = "", ""
    if (call := _call.get()) is not None:
        method, peer = call[0], call[1].peer()
    record("denied", callers.current(), method, peer, reason)


def record(
    event: Event,
    caller: Caller | None = None,
    method: str = "",
    peer: str = "",
    reason: str = "",
    *,
    outcome: Outcome = "refused",
    target: str = "",
    tenant: str = "",
) -> None:
    """Write one record.

    Args:
        event: what happened.
        caller: who; None if nobody proved who it is.
        method: full name of the called method; empty outside a call.
        peer: address of the connection, as gRPC states it.
        reason: machine-readable reason of an error, such as ``UNKNOWN_KEY``; empty if all went well.
        outcome: how it ended.
        target: name of the deleted, promoted or changed thing.
        tenant: tenant that it belongs to; default: the caller's.
    """
    _log.info(
        event,
        extra={
            "event": event,
            "outcome": outcome,
            "actor": "" if caller is None else caller.name[:_LONGEST],
            "tenant": tenant or ("" if caller is None else caller.tenant),
            "method": method,
            "target": target[:_LONGEST],
            "peer": unquote(peer)[:_LONGEST],
            "reason": reason,
        },
    )


class AuditedMethods(HandlerInterceptor):
    """Server interceptor that records each call of a method whose contract states ``audited``.

    Runs inside authentication and the guard, next to the servicer. A call that failed is recorded without its
    target, which may be anything that a caller wrote.
    """

    def covers(self, method: str) -> bool:
        return super().covers(method) and facts_of(method).audited

    def around(self, method: str, handler: Handler, behaviour: Behaviour) -> Behaviour:
        async def audited(request: Any, context: Context) -> Any:
            outcome: Outcome = "failed"
            reason = target = ""
            try:
                result = await behaviour(request, context)
                outcome, target = "done", _target(request)
            except MeshError as error:
                reason = error.reason
                raise
            except asyncio.CancelledError:
                reason = "CANCELLED"
                raise
            except Exception:
                reason = "INTERNAL"
                raise
            else:
                return result
            finally:
                record(
                    "call",
                    callers.current(),
                    method,
                    context.peer(),
                    reason,
                    outcome=outcome,
                    target=target,
                )

        return audited


def record_change(kind: Kind, what: Change, target: str, tenant: str = "") -> None:
    """Record that an entry of a reloaded file changed."""
    record(cast(Event, f"{kind}_{what}"), outcome="done", target=target, tenant=tenant)


def changes(before: Mapping[str, T], after: Mapping[str, T]) -> Iterable[tuple[Change, str]]:
    """Yield which entries of a reloaded file were added, changed or removed, by their key."""
    for key in sorted({*before, *after}):
        if key not in before:
            yield "added", key
        elif key not in after:
            yield "removed", key
        elif before[key] != after[key]:
            yield "changed", key


def _target(request: Any) -> str:
    """Return what a request names first: its leading string, or its agent."""
    if not isinstance(request, Message):
        return ""
    for field, value in request.ListFields():
        if isinstance(value, Agent):
            return f"{value.task_id}/{value.model_id}"
        if isinstance(value, str) and field.number == 1:
            return value
    return ""
