"""The one error table: Python exceptions on one side, gRPC statuses with ``google.rpc`` details on the other.

Servicers raise :class:`MeshError` (or :class:`ragcore.errors.InvalidInput`); the server's guard maps what was
raised with :func:`to_mesh_error` and sends it with :func:`abort`. Callers turn a failed call back into the
same class with :func:`from_rpc_error`. What is not in the table leaves a service only as an incident id.
"""

# ruff: noqa: N818 - the names are those of the statuses

from __future__ import annotations

import contextlib
import logging
import secrets
from collections.abc import Iterable, Iterator
from typing import Any, Final, NoReturn, cast

import grpc
from google.protobuf import message
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from ragcore.errors import InvalidInput
from ragmesh.common.v1 import common_pb2

DOMAIN: Final = "ragmesh"
"""``google.rpc.ErrorInfo.domain`` of every error of this mesh."""

_DETAILS_KEY: Final = "grpc-status-details-bin"
# A status travels in metadata, of which gRPC takes 8 KiB: three times its bytes where they are escaped, and
# again in the details. One that repeats what a caller sent would be lost, and the call's stream with it.
_MOST_MESSAGE_BYTES: Final = 800
_MOST_FIELD_BYTES: Final = 256
_log = logging.getLogger("ragmesh.meshkit.errors")


class MeshError(Exception):
    """An error with a place on the wire.

    Args:
        code: canonical gRPC code.
        reason: machine-readable UPPER_SNAKE reason, ``google.rpc.ErrorInfo.reason``.
        message: one line for a person; leaves the service as it is.
        field: path of the offending request field, such as ``sampling.alpha``; None when none is at fault.
        retry_after_s: seconds after which a retry may succeed; None when a retry is not the remedy.
    """

    def __init__(
        self,
        code: grpc.StatusCode,
        reason: str,
        message: str,
        *,
        field: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.field = field
        self.retry_after_s = retry_after_s

    def __str__(self) -> str:
        """The message as it is sent: the field first, unless the message begins with it."""
        if self.field and not self.message.startswith(self.field):
            return f"{self.field}: {self.message}"
        return self.message


class InvalidField(MeshError):
    """INVALID_ARGUMENT: a request field has a value that is not allowed."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD", message, field=field)


class NotFound(MeshError):
    """NOT_FOUND: a request field names something that is not there."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(grpc.StatusCode.NOT_FOUND, "NOT_FOUND", message, field=field)


class AlreadyExists(MeshError):
    """ALREADY_EXISTS: a request field names something that is there already."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(grpc.StatusCode.ALREADY_EXISTS, "ALREADY_EXISTS", message, field=field)


class FailedPrecondition(MeshError):
    """FAILED_PRECONDITION: the request is fine, the state it needs is not there."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(grpc.StatusCode.FAILED_PRECONDITION, reason, message)


class Unauthenticated(MeshError):
    """UNAUTHENTICATED: no credential, or one that proves nothing (any more)."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(grpc.StatusCode.UNAUTHENTICATED, reason, message)


class PermissionDenied(MeshError):
    """PERMISSION_DENIED: who calls is known, and may not do this."""

    def __init__(self, message: str) -> None:
        super().__init__(grpc.StatusCode.PERMISSION_DENIED, "PERMISSION_DENIED", message)


class Overloaded(MeshError):
    """RESOURCE_EXHAUSTED with RetryInfo: refused at the door because too much work is in flight."""

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(
            grpc.StatusCode.RESOURCE_EXHAUSTED, "OVERLOADED", message, retry_after_s=retry_after_s
        )


class Unavailable(MeshError):
    """UNAVAILABLE: this or an upstream service cannot answer now; an idempotent call may be tried again."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(grpc.StatusCode.UNAVAILABLE, reason, message)


class DeadlineExceeded(MeshError):
    """DEADLINE_EXCEEDED: no time is left for the call."""

    def __init__(self, message: str) -> None:
        super().__init__(grpc.StatusCode.DEADLINE_EXCEEDED, "DEADLINE_EXCEEDED", message)


class Unimplemented(MeshError):
    """UNIMPLEMENTED: the contract has it, this version of ragmesh does not."""

    def __init__(self, message: str) -> None:
        super().__init__(grpc.StatusCode.UNIMPLEMENTED, "UNIMPLEMENTED", message)


class Internal(MeshError):
    """INTERNAL, opaque: all that leaves the service is the id under which its log tells the story."""

    def __init__(self, incident: str) -> None:
        super().__init__(
            grpc.StatusCode.INTERNAL, "INTERNAL", f"internal error; the service's log has it as {incident}"
        )


_CLASS_OF_CODE: Final[dict[grpc.StatusCode, type[MeshError]]] = {
    grpc.StatusCode.UNAUTHENTICATED: Unauthenticated,
    grpc.StatusCode.PERMISSION_DENIED: PermissionDenied,
    grpc.StatusCode.INVALID_ARGUMENT: InvalidField,
    grpc.StatusCode.NOT_FOUND: NotFound,
    grpc.StatusCode.ALREADY_EXISTS: AlreadyExists,
    grpc.StatusCode.FAILED_PRECONDITION: FailedPrecondition,
    grpc.StatusCode.UNAVAILABLE: Unavailable,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceeded,
    grpc.StatusCode.UNIMPLEMENTED: Unimplemented,
    grpc.StatusCode.INTERNAL: Internal,
}

# Statuses of a peer that says nothing of ours (the gRPC runtime, Triton): its text may hold addresses or
# internals, so only these codes pass on, each with our words.
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
    """Maps any exception to the table.

    A :class:`MeshError` is returned as it is; ``ragcore.errors.InvalidInput`` becomes :class:`InvalidField`
    of its argument; ``TimeoutError`` :class:`DeadlineExceeded`; a ``grpc.RpcError`` what its sender meant,
    or, from a peer outside this mesh, its code without its text. Anything else is logged with its stack under
    a new incident id and becomes :class:`Internal`.
    """
    if isinstance(exc, MeshError):
        return exc
    if isinstance(exc, InvalidInput):
        return InvalidField(exc.argument, str(exc))
    if isinstance(exc, TimeoutError):
        return DeadlineExceeded("no time was left to answer")
    if isinstance(exc, grpc.RpcError) and (code := _code_of(exc)) is not None:
        if _status_of(exc) is not None:
            return from_rpc_error(exc)
        if code in _FOREIGN:
            return restored(*_FOREIGN[code])
    incident = secrets.token_hex(8)
    _log.error("incident %s: %s", incident, type(exc).__name__, exc_info=exc, extra={"incident": incident})
    return Internal(incident)


def from_rpc_error(exc: grpc.RpcError) -> MeshError:
    """Reads a failed call back into the class that was raised on the other side.

    Without ``google.rpc`` details (a peer outside this mesh, or gRPC itself) ``reason`` is the code's name
    and ``message`` the peer's text, which is for logs and not to be sent on. RESOURCE_EXHAUSTED is
    :class:`Overloaded` only if it came with a retry delay; a message over the size limit does not. CANCELLED
    is :class:`Unavailable` with reason ``CANCELLED``: what a server that shuts down answers to calls in its
    queue (a caller that cancels an asyncio call itself sees ``asyncio.CancelledError`` instead).
    """
    code = _code_of(exc)
    if code is None:
        return MeshError(grpc.StatusCode.UNKNOWN, "UNKNOWN", str(exc))
    status = _status_of(exc)
    if status is None:
        text = str(cast(Any, exc).details() or "")
        stands_for = grpc.StatusCode.UNAVAILABLE if code is grpc.StatusCode.CANCELLED else code
        return restored(stands_for, code.name, text)
    reason, text = code.name, status.message
    field: str | None = None
    retry_after_s: float | None = None
    for detail in _unpacked(status):
        match detail:
            case error_details_pb2.ErrorInfo():
                reason = detail.reason
            case error_details_pb2.BadRequest() if detail.field_violations:
                field = detail.field_violations[0].field
                text = detail.field_violations[0].description
            case error_details_pb2.RetryInfo():
                retry_after_s = detail.retry_delay.seconds + detail.retry_delay.nanos / 1e9
    return restored(code, reason, text, field, retry_after_s)


def reason_in(trailers: Iterable[tuple[str, str | bytes]] | None) -> str:
    """The reason that a status of this mesh has, by the metadata it was sent with; empty of any other."""
    status = _status_in(trailers)
    details = () if status is None else _unpacked(status)
    return next((one.reason for one in details if isinstance(one, error_details_pb2.ErrorInfo)), "")


def item_error(exc: BaseException) -> common_pb2.ItemError:
    """The error of one item of a batch, through the same table as the error of a call."""
    error = to_mesh_error(exc)
    return common_pb2.ItemError(
        code=error.code.name, reason=error.reason, message=error.message, field=error.field or ""
    )


def from_item_error(e: common_pb2.ItemError) -> MeshError:
    """Reads one item's error back; a code this version does not know is UNKNOWN."""
    code = grpc.StatusCode.__members__.get(e.code, grpc.StatusCode.UNKNOWN)
    return restored(code, e.reason, e.message, e.field or None)


async def abort(context: grpc.aio.ServicerContext[Any, Any], exc: BaseException) -> NoReturn:
    """Ends the call with the status of ``exc``, its details attached."""
    error = to_mesh_error(exc)
    await context.abort_with_status(rpc_status.to_status(_to_status(error)))


def _to_status(error: MeshError) -> status_pb2.Status:
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
    told = words if field is None or words.startswith(field) else f"{field}: {words}"
    status = status_pb2.Status(code=error.code.value[0], message=told)
    for detail in details:
        status.details.add().Pack(detail)
    return status


def _cut(text: str, most_bytes: int) -> str:
    """The text as far as it may be sent."""
    data = text.encode(errors="replace")
    shown = data if len(data) <= most_bytes else data[: most_bytes - 3]
    return shown.decode(errors="ignore") + ("" if shown is data else "…")


def restored(
    code: grpc.StatusCode,
    reason: str,
    text: str,
    field: str | None = None,
    retry_after_s: float | None = None,
) -> MeshError:
    """An error of the class its code stands for, as it was raised elsewhere.

    RESOURCE_EXHAUSTED is :class:`Overloaded` only with a retry delay.
    """
    overloaded = code is grpc.StatusCode.RESOURCE_EXHAUSTED and retry_after_s is not None
    # Without running the class's own constructor, which knows fewer fields.
    cls = Overloaded if overloaded else _CLASS_OF_CODE.get(code, MeshError)
    error = cls.__new__(cls)
    MeshError.__init__(error, code, reason, text, field=field, retry_after_s=retry_after_s)
    return error


def _code_of(exc: grpc.RpcError) -> grpc.StatusCode | None:
    """The code of a failed call; a bare ``grpc.RpcError``, which the API allows, has none."""
    code = getattr(exc, "code", None)
    return cast(grpc.StatusCode, code()) if callable(code) else None


def _status_of(exc: grpc.RpcError) -> status_pb2.Status | None:
    """The rich status of a failed call if one of this mesh sent it."""
    return _status_in(cast(Any, exc).trailing_metadata())


def _status_in(trailers: Iterable[tuple[str, str | bytes]] | None) -> status_pb2.Status | None:
    for key, value in trailers or ():
        if key == _DETAILS_KEY:
            try:
                status = status_pb2.Status.FromString(cast(bytes, value))
            except message.DecodeError:
                return None
            ours = any(
                isinstance(detail, error_details_pb2.ErrorInfo) and detail.domain == DOMAIN
                for detail in _unpacked(status)
            )
            return status if ours else None
    return None


def _unpacked(status: status_pb2.Status) -> Iterator[message.Message]:
    for packed in status.details:
        for kind in (error_details_pb2.ErrorInfo, error_details_pb2.BadRequest, error_details_pb2.RetryInfo):
            if packed.Is(kind.DESCRIPTOR):
                detail = kind()
                with contextlib.suppress(message.DecodeError):  # of a peer that packs something else
                    packed.Unpack(detail)
                    yield detail
