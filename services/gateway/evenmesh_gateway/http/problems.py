"""Errors over HTTP: the status of each gRPC code, and problem details (RFC 9457)."""

from __future__ import annotations

import math
from http import HTTPStatus
from typing import Any, Final

import grpc
from starlette.responses import JSONResponse

from evenmesh.wire.errors import MeshError

STATUS: Final[dict[grpc.StatusCode, int]] = {
    grpc.StatusCode.INVALID_ARGUMENT: 400,
    grpc.StatusCode.OUT_OF_RANGE: 400,
    grpc.StatusCode.FAILED_PRECONDITION: 400,
    grpc.StatusCode.UNAUTHENTICATED: 401,
    grpc.StatusCode.PERMISSION_DENIED: 403,
    grpc.StatusCode.NOT_FOUND: 404,
    grpc.StatusCode.ALREADY_EXISTS: 409,
    grpc.StatusCode.ABORTED: 409,
    grpc.StatusCode.RESOURCE_EXHAUSTED: 429,
    grpc.StatusCode.CANCELLED: 499,
    grpc.StatusCode.UNIMPLEMENTED: 501,
    grpc.StatusCode.UNAVAILABLE: 503,
    grpc.StatusCode.DEADLINE_EXCEEDED: 504,
    grpc.StatusCode.UNKNOWN: 500,
    grpc.StatusCode.INTERNAL: 500,
    grpc.StatusCode.DATA_LOSS: 500,
}
"""HTTP status of each code of a call that failed: the table of Connect."""

PROBLEM_TYPE: Final = "application/problem+json"
TOO_LARGE: Final = 413
UNSUPPORTED_TYPE: Final = 415
_TITLES: Final = {499: "Client Closed Request"}


class HttpProblem(Exception):  # noqa: N818 - a problem, as RFC 9457 names it
    """An error that HTTP knows and gRPC does not, such as a body over its limit.

    Args:
        status: the HTTP status.
        reason: machine-readable UPPER_SNAKE reason.
        message: one line for a person.
    """

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.message = message


def status_of(error: MeshError | HttpProblem) -> int:
    """Return the HTTP status of an error.

    RESOURCE_EXHAUSTED without a retry delay, as of a message over its limit, is 413: to wait does not help.
    """
    if isinstance(error, HttpProblem):
        return error.status
    if error.code is grpc.StatusCode.RESOURCE_EXHAUSTED and error.retry_after_s is None:
        return TOO_LARGE
    return STATUS[error.code]


def problem_of(error: MeshError | HttpProblem) -> dict[str, Any]:
    """Return the problem details of an error: ``title``, ``status``, ``detail``, and what gRPC callers get.

    That is ``code`` (canonical, of gRPC), ``reason``, the ``field`` at fault and ``retry_after_s``.
    """
    status = status_of(error)
    details: dict[str, Any] = {
        "title": _TITLES.get(status) or HTTPStatus(status).phrase,
        "status": status,
        "detail": str(error),
        "reason": error.reason,
    }
    if isinstance(error, MeshError):
        details["code"] = error.code.name
        if error.field:
            details["field"] = error.field
        if error.retry_after_s is not None:
            details["retry_after_s"] = error.retry_after_s
    return details


def headers_of(error: MeshError | HttpProblem) -> dict[str, str]:
    """Return the headers of an error: when to come again, and how to prove who calls."""
    headers: dict[str, str] = {}
    if isinstance(error, MeshError):
        if error.retry_after_s is not None:
            headers["retry-after"] = str(max(1, math.ceil(error.retry_after_s)))  # HTTP counts whole seconds
        if error.code is grpc.StatusCode.UNAUTHENTICATED:
            headers["www-authenticate"] = "Bearer"
    return headers


def problem_response(error: MeshError | HttpProblem, extra: dict[str, Any] | None = None) -> JSONResponse:
    """Return the response to a request that failed; ``extra`` members are added to the problem's."""
    return JSONResponse(
        {**problem_of(error), **(extra or {})},
        status_code=status_of(error),
        headers=headers_of(error),
        media_type=PROBLEM_TYPE,
    )
