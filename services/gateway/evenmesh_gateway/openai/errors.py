"""Errors in the form of OpenAI's API."""

from __future__ import annotations

from typing import Any, Final

from evenmesh.wire.errors import MeshError
from evenmesh_gateway.http.problems import HttpProblem, status_of

_TYPES: Final = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}
_SERVER: Final = 500


def error_of(problem: MeshError | HttpProblem) -> dict[str, Any]:
    """Return the member ``error`` that clients of OpenAI's API read, beside the problem's own."""
    status = status_of(problem)
    kind = "server_error" if status >= _SERVER else _TYPES.get(status, "invalid_request_error")
    return {
        "error": {
            "message": str(problem),
            "type": kind,
            "param": problem.field if isinstance(problem, MeshError) else None,
            "code": problem.reason,
        }
    }
