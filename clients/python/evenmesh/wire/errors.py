"""The errors of a mesh, and how to read them back from a gRPC status with ``google.rpc`` details.

Servicers raise :class:`MeshError`; a service sends it as a status (``evenmesh_kit.rpc.statuses``). Callers
turn a failed call back into the same class with :func:`from_rpc_error`.
"""

# ruff: noqa: N818 - the names are those of the statuses

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any, Final, cast

import grpc
from google.protobuf import message
from google.rpc import error_details_pb2, status_pb2

from evenmesh.common.v1 import common_pb2

DOMAIN: Final = "evenmesh"
"""``google.rpc.ErrorInfo.domain`` of every error of this mesh."""

OVERLOADED: Final = "OVERLOADED"
"""Reason of a call that is rejected because the work of all callers leaves no room."""
SHARE_FULL: Final = "SHARE_FULL"
"""Reason of a call that is rejected because its own tenant, agent or host has its share in flight already."""

_DETAILS_KEY: Final = "grpc-status-details-bin"


class MeshError(Exception):
    """An error that a service sends to its caller.

    Args:
        code: canonical gRPC code.
        reason: machine-readable UPPER_SNAKE reason, ``google.rpc.ErrorInfo.reason``.
        message: one line for a person, sent unchanged.
        field: path of the invalid request field, such as ``sampling.alpha``; None if no field is at fault.
        retry_after_s: time after which a retry may succeed; None if a retry does not help. Seconds.
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
        """Return the message as it is sent: the field first, unless the message begins with it."""
        if self.field and not self.message.startswith(self.field):
            return f"{self.field}: {self.message}"
        return self.message

    def __reduce__(self) -> tuple[Any, ...]:
        """Return how to copy the error, which pools of processes send: constructors take other arguments."""
        return _without_arguments, (type(self), self.args), self.__dict__


class InvalidField(MeshError):
    """INVALID_ARGUMENT: a request field has a value that is not allowed."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD", message, field=field)


class NotFound(MeshError):
    """NOT_FOUND: a request field names something that does not exist."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(grpc.StatusCode.NOT_FOUND, "NOT_FOUND", message, field=field)


class AlreadyExists(MeshError):
    """ALREADY_EXISTS: a request field names something that exists already."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(grpc.StatusCode.ALREADY_EXISTS, "ALREADY_EXISTS", message, field=field)


class FailedPrecondition(MeshError):
    """FAILED_PRECONDITION: the request is valid, but the service is not in the state it needs."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(grpc.StatusCode.FAILED_PRECONDITION, reason, message)


class Unauthenticated(MeshError):
    """UNAUTHENTICATED: there is no credential, or it is invalid or expired."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(grpc.StatusCode.UNAUTHENTICATED, reason, message)


class PermissionDenied(MeshError):
    """PERMISSION_DENIED: the caller is known and may not do this."""

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(grpc.StatusCode.PERMISSION_DENIED, "PERMISSION_DENIED", message, field=field)


class Overloaded(MeshError):
    """RESOURCE_EXHAUSTED with RetryInfo: too much work is in flight to admit the call.

    The reason is :data:`OVERLOADED` or :data:`SHARE_FULL`, or that of a limit of the tenant.
    """

    def __init__(self, message: str, retry_after_s: float, reason: str = OVERLOADED) -> None:
        super().__init__(grpc.StatusCode.RESOURCE_EXHAUSTED, reason, message, retry_after_s=retry_after_s)


class Unavailable(MeshError):
    """UNAVAILABLE: this or an upstream service cannot answer now; an idempotent call may be tried again."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(grpc.StatusCode.UNAVAILABLE, reason, message)


class DeadlineExceeded(MeshError):
    """DEADLINE_EXCEEDED: no time is left for the call."""

    def __init__(self, message: str) -> None:
        super().__init__(grpc.StatusCode.DEADLINE_EXCEEDED, "DEADLINE_EXCEEDED", message)


class Unimplemented(MeshError):
    """UNIMPLEMENTED: the contract has the method, but this version of evenmesh does not."""

    def __init__(self, message: str) -> None:
        super().__init__(grpc.StatusCode.UNIMPLEMENTED, "UNIMPLEMENTED", message)


class Internal(MeshError):
    """INTERNAL: the caller gets only an incident id, under which the service's log has the details."""

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


def from_rpc_error(exc: grpc.RpcError) -> MeshError:
    """Return a failed call as the error that the service raised.

    Without ``google.rpc`` details (from a peer outside this mesh, or gRPC itself) ``reason`` is the code's
    name and ``message`` the peer's text, for logs only. RESOURCE_EXHAUSTED is :class:`Overloaded` only with a
    retry delay, which a message over the size limit lacks. CANCELLED is :class:`Unavailable` with reason
    ``CANCELLED``: a server that shuts down answers so to calls in its queue. (A caller that cancels an
    asyncio call itself sees ``asyncio.CancelledError`` instead.)
    """
    code = code_of(exc)
    if code is None:
        return MeshError(grpc.StatusCode.UNKNOWN, "UNKNOWN", str(exc))
    status = status_of(exc)
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
    """Return the reason in the trailing metadata of a status of this mesh; empty for any other status."""
    status = _status_in(trailers)
    details = () if status is None else _unpacked(status)
    return next((one.reason for one in details if isinstance(one, error_details_pb2.ErrorInfo)), "")


def from_item_error(e: common_pb2.ItemError) -> MeshError:
    """Return the error of one item of a batch; a code unknown to this version is UNKNOWN."""
    code = grpc.StatusCode.__members__.get(e.code, grpc.StatusCode.UNKNOWN)
    return restored(code, e.reason, e.message, e.field or None)


def restored(
    code: grpc.StatusCode,
    reason: str,
    text: str,
    field: str | None = None,
    retry_after_s: float | None = None,
) -> MeshError:
    """Return an error of its code's class; RESOURCE_EXHAUSTED is :class:`Overloaded` only with a delay."""
    overloaded = code is grpc.StatusCode.RESOURCE_EXHAUSTED and retry_after_s is not None
    # The class's own constructor takes fewer fields.
    cls = Overloaded if overloaded else _CLASS_OF_CODE.get(code, MeshError)
    error = cls.__new__(cls)
    MeshError.__init__(error, code, reason, text, field=field, retry_after_s=retry_after_s)
    return error


def _without_arguments(cls: type[MeshError], args: tuple[Any, ...]) -> MeshError:
    """Return an error whose constructor did not run: a copy, which gets its attributes afterwards."""
    error = cls.__new__(cls)
    error.args = args
    return error


def code_of(exc: grpc.RpcError) -> grpc.StatusCode | None:
    """Return the code of a failed call; None for a bare ``grpc.RpcError``, which the API allows."""
    code = getattr(exc, "code", None)
    return cast(grpc.StatusCode, code()) if callable(code) else None


def status_of(exc: grpc.RpcError) -> status_pb2.Status | None:
    """Return the rich status of a failed call if a service of this mesh sent it."""
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
                with contextlib.suppress(message.DecodeError):  # a peer may pack something else
                    packed.Unpack(detail)
                    yield detail
