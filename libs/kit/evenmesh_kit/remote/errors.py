"""Map failures of model servers to this mesh's errors.

A caller gets what a server says only where it is about the request or the model. Addresses and keys leave the
service in no error.
"""

from __future__ import annotations

import json
import math
import time
from email.utils import parsedate_to_datetime
from typing import Any, Final

import grpc

from evenmesh.wire.errors import FailedPrecondition, MeshError, Overloaded, Unavailable

MOST_SAID: Final = 300
"""Most characters of a server's message that are repeated."""
RETRY_S: Final = 1.0
"""Retry delay where the server names none. Seconds."""
MOST_RETRY_S: Final = 3600.0
"""Longest retry delay that is passed on. Seconds."""

_FAILED_DEPENDENCY: Final = 424
"""Status of text-embeddings-inference when its model fails."""
_GONE: Final = frozenset({502, 503, 504})
"""Statuses of a server, or a gateway before it, that serves nobody now."""


class ServerUnavailable(Unavailable):
    """UNAVAILABLE: a model server cannot answer now.

    Attributes:
        elsewhere: whether another endpoint may answer.
        rests: whether the endpoint should be left alone for a while.
    """

    def __init__(
        self,
        reason: str,
        message: str,
        *,
        elsewhere: bool = True,
        rests: bool = True,
        retry_after_s: float | None = RETRY_S,
    ) -> None:
        super().__init__(reason, message)
        self.retry_after_s = retry_after_s
        self.elsewhere = elsewhere
        self.rests = rests


class ConnectionBroken(ServerUnavailable):
    """UNAVAILABLE: the server closed a connection before it replied; a new one may work."""


class MalformedReply(ServerUnavailable):
    """UNAVAILABLE: a server answered something that its interface does not allow."""

    def __init__(self, message: str, reason: str = "REMOTE_MALFORMED_REPLY") -> None:
        super().__init__(reason, message, elsewhere=False, rests=False, retry_after_s=None)


class ReplyTooLarge(MalformedReply):
    """UNAVAILABLE: a server's reply has more than ``most`` bytes."""

    def __init__(self, most: int) -> None:
        super().__init__(f"the model server's reply has more than {most} bytes", "REMOTE_REPLY_TOO_LARGE")


class Rejected(MeshError):  # noqa: N818 - a status, as those of evenmesh.wire.errors
    """INVALID_ARGUMENT: the server rejects what the request asks for.

    Attributes:
        status: the server's HTTP status.
        said: its message, one line of at most 300 characters.
        said_code: its machine-readable code, such as ``context_length_exceeded``; empty without one.
    """

    def __init__(self, status: int, said: str, said_code: str = "") -> None:
        shown = said or f"HTTP {status}"
        super().__init__(
            grpc.StatusCode.INVALID_ARGUMENT,
            "REMOTE_REJECTED",
            f"the model server rejects the request: {shown}",
        )
        self.status = status
        self.said = said
        self.said_code = said_code


def from_status(
    status: int,
    body: bytes,
    retry_after: str | None,
    *,
    key_setting: str,
    urls_setting: str,
    secret: str = "",
) -> MeshError:
    """Return the error of a reply that is no success.

    Args:
        status: HTTP status, below 200 or from 300.
        body: the reply, or its beginning.
        retry_after: the header ``Retry-After``; None without it.
        key_setting: name of the setting of the key.
        urls_setting: name of the setting of the base URLs.
        secret: the key, which a server may repeat; it is taken out of messages.
    """
    said, code = said_in(body, secret)
    if status in (401, 403):
        return FailedPrecondition(
            "REMOTE_KEY_REFUSED",
            f"the model server refuses this service's key (HTTP {status}); {key_setting} must name a file "
            "with a key that it accepts",
        )
    if status == 404:
        return FailedPrecondition(
            "REMOTE_NOT_FOUND",
            "the model server has no such model or path (HTTP 404); check the model's name on the server, "
            f"and {urls_setting}" + (f"; it says: {said}" if said else ""),
        )
    if status in (400, 413, 422):
        return Rejected(status, said, code)
    if status == 429:
        wait_s = retry_delay(retry_after)
        return Overloaded("the model server has too many requests", RETRY_S if wait_s is None else wait_s)
    if 300 <= status < 400:
        return FailedPrecondition(
            "REMOTE_REDIRECTED",
            f"the model server redirects (HTTP {status}), which is not followed; {urls_setting} must be its "
            "own address",
        )
    if status >= 500 or status == _FAILED_DEPENDENCY:
        wait_s = retry_delay(retry_after)
        return ServerUnavailable(
            "REMOTE_UNAVAILABLE",
            f"the model server fails (HTTP {status})",
            rests=status in _GONE,
            retry_after_s=RETRY_S if wait_s is None else wait_s,
        )
    return FailedPrecondition(
        "REMOTE_REFUSED",
        f"the model server refuses the call (HTTP {status})" + (f": {said}" if said else ""),
    )


def retry_delay(header: str | None) -> float | None:
    """Return the seconds of a ``Retry-After`` header, a number or a date, [0, 3600]; None if it has none."""
    if header is None or len(header) > 64:
        return None
    try:
        seconds = float(header)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(header).timestamp() - time.time()
        except (ValueError, OverflowError):
            return None
    if math.isnan(seconds):
        return None
    return min(max(0.0, seconds), MOST_RETRY_S)


def said_in(body: bytes, secret: str = "") -> tuple[str, str]:
    """Return a server's error message, in one short line, and its code; each may be empty.

    Reads the shapes of OpenAI (``{"error": {"message", "code"}}``), of text-embeddings-inference
    (``{"error": …, "error_type": …}``) and of FastAPI (``{"detail": …}``), and else takes the text.
    """
    text = body.decode(errors="replace")
    code = ""
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError):
        parsed = None
    if isinstance(parsed, dict):
        inner = parsed.get("error", parsed)
        fields = inner if isinstance(inner, dict) else parsed
        found = _first(fields, "message", "error", "detail") or text
        text = found if isinstance(found, str) else json.dumps(found)
        code = str(_first(fields, "code", "type", "error_type") or "")
    elif "<" in text[:64]:
        text = ""  # a page of a proxy
    if secret:
        text, code = text.replace(secret, "…"), code.replace(secret, "…")
    return _line(text, MOST_SAID), _line(code, 64)


def _first(fields: dict[str, Any], *names: str) -> Any:
    return next((fields[name] for name in names if fields.get(name)), None)


def _line(text: str, most: int) -> str:
    # Cut first: splitting a large reply takes a while.
    text = " ".join("".join(c if c.isprintable() else " " for c in text[: 4 * most]).split())
    return text if len(text) <= most else text[: most - 1] + "…"
