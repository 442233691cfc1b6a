"""Map what a servicer raises to a gRPC status with ``google.rpc`` details.

Servicers raise :class:`evenmesh.wire.errors.MeshError` or :class:`evenmesh_core.errors.InvalidInput`; the
guard maps it with :func:`to_mesh_error` and sends it with :func:`abort`. Of any other exception a caller gets
only an incident id.
"""

from __future__ import annotations

import logging
import secrets
from typing import Any, Final, NoReturn

import grpc
from google.protobuf import message
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from evenmesh.common.v1 import common_pb2
from evenmesh.wire.errors import (
    DOMAIN,
    DeadlineExceeded,
    Internal,
    InvalidField,
    MeshError,
    code_of,
    from_rpc_error,
    restored,
    status_of,
)
from evenmesh_core.errors import InvalidInput

# A status travels in metadata, which gRPC limits to 8 KiB, and takes three times its bytes if escaped, and
# again in the details. A longer one, as one that quotes the caller, would be lost together with the call's
# stream.
_MOST_MESSAGE_BYTES: Final = 800
_MOST_FIELD_BYTES: Final = 256
_NOT_REPEATED: Final = frozenset({"WEB_UNAVAILABLE"})
"""Reasons of UNAVAILABLE for which a channel must not send a call again: a search of the web costs money."""
_NO_RETRY: Final = ("grpc-retry-pushback-ms", "-1")  # gRFC A6
_log = logging.getLogger("evenmesh.kit.statuses")

# Statuses of peers outside the mesh (the gRPC runtime, Triton). Their text may hold addresses or internals,
# so only these codes pass on, each with our text.
_FOREIGN: Final[dict[grpc.StatusCode, tuple[grpc.StatusCode, str, str]]] = {
    grpc.StatusCode.UNAVAILABLE: (
        grpc.StatusCode.UNAVAILABLE,
        "UPSTREAM_UNAVAILABLE",
        "a service this call needs is unavailable",
    ),
    grpc.StatusCode.CANCELLED: (
        grpc.StatusCode.UNAVAILABLE,
        "UPSTREAM_UNAVAILABLE",
        "a service this call needs stopped answering",
    ),
    grpc.StatusCode.DEADLINE_EXCEEDED: (
        grpc.StatusCode.DEADLINE_EXCEEDED,
        "DEADLINE_EXCEEDED",
        "a service this call needs did not answer in time",
    ),
    grpc.StatusCode.RESOURCE_EXHAUSTED: (
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        "UPSTREAM_EXHAUSTED",
        "a service this call needs refused a message as too large or is out of resources",
    ),
}


def to_mesh_error(exc: BaseException) -> MeshError:
    """Return the error to send for any exception.

    A :class:`MeshError` stays as it is. ``evenmesh_core.errors.InvalidInput`` becomes :class:`InvalidField`
    of its argument, ``TimeoutError`` :class:`DeadlineExceeded`. A ``grpc.RpcError`` becomes the error that a
    service of the mesh sent, or, from a peer outside it, the code without the text. Anything else is logged
    with its stack under a new incident id and becomes :class:`Internal`.
    """
    if isinstance(exc, MeshError):
        return exc
    if isinstance(exc, InvalidInput):
        return InvalidField(exc.argument, str(exc))
    if isinstance(exc, TimeoutError):
        return DeadlineExceeded("no time was left to answer")
    if isinstance(exc, grpc.RpcError) and (code := code_of(exc)) is not None:
        if status_of(exc) is not None:
            return from_rpc_error(exc)
        if code in _FOREIGN:
            return restored(*_FOREIGN[code])
    incident = secrets.token_hex(8)
    _log.error("incident %s: %s", incident, type(exc).__name__, exc_info=exc, extra={"incident": incident})
    return Internal(incident)


def item_error(exc: BaseException) -> common_pb2.ItemError:
    """Return the error of one item of a batch, mapped as the error of a call."""
    error = to_mesh_error(exc)
    return common_pb2.ItemError(
        code=error.code.name, reason=error.reason, message=error.message, field=error.field or ""
    )


async def abort(context: grpc.aio.ServicerContext[Any, Any], exc: BaseException) -> NoReturn:
    """End the call with the status of ``exc`` and its details; no channel sends it again if it must not."""
    error = to_mesh_error(exc)
    status: Any = rpc_status.to_status(to_status(error))
    if error.reason in _NOT_REPEATED:
        status = status._replace(trailing_metadata=(*status.trailing_metadata, _NO_RETRY))
    await context.abort_with_status(status)


def to_status(error: MeshError) -> status_pb2.Status:
    """Return the status of an error with its ``google.rpc`` details; long texts are cut."""
    details: list[message.Message] = [error_details_pb2.ErrorInfo(reason=error.reason, domain=DOMAIN)]
    words = _cut(error.message, _MOST_MESSAGE_BYTES)
    field = None if error.field is None else _cut(error.field, _MOST_FIELD_BYTES)
    if field is not None:
        violation = error_details_pb2.BadRequest.FieldViolation(field=field, description=words)
        details.append(error_details_pb2.BadRequest(field_violations=[violation]))
    if error.retry_after_s is not None:
        retry = error_details_pb2.RetryInfo()
        retry.retry_delay.FromNanoseconds(round(error.retry_after_s * 1e9))
        details.append(retry)
    message_text = words if field is None or words.startswith(field) else f"{field}: {words}"
    status = status_pb2.Status(code=error.code.value[0], message=message_text)
    for detail in details:
        status.details.add().Pack(detail)
    return status


def _cut(text: str, most_bytes: int) -> str:
    """Return the text, cut to ``most_bytes`` of UTF-8."""
    data = text.encode(errors="replace")
    kept = data if len(data) <= most_bytes else data[: most_bytes - 3]
    return kept.decode(errors="ignore") + ("" if kept is data else "…")
