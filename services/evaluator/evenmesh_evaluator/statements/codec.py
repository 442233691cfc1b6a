"""Reading of requests for statements and balances, and writing of what they get."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from itertools import pairwise
from typing import Any, Final

from google.protobuf import json_format

from evenmesh.evaluator.v1 import evaluator_service_pb2 as pb
from evenmesh.wire import checks
from evenmesh.wire.errors import InvalidField
from evenmesh_evaluator import fields
from evenmesh_evaluator.domain import ProviderBalance
from evenmesh_evaluator.reports import codec
from evenmesh_evaluator.statements.summary import Privacy, Stated, Window

MAX_DAYS: Final = 400
"""Longest window of a statement. Days."""
DEFAULT_DAYS: Final = 30
"""Window where the request does not say. Days."""
DEFAULT_HALF_LIFE_DAYS: Final = 30.0
"""Half-life of a balance where the request does not say. Days."""

_EPOCH: Final = date(1970, 1, 1)
_EPOCH_TIME: Final = datetime(1970, 1, 1)
_DAY: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_NONCE: Final = re.compile(r"[A-Za-z0-9_-]*")


def provider(value: str) -> str:
    """Return the name of a provider, checked for its bytes and for control characters."""
    return fields.limited("provider", value, checks.MAX_ATTRIBUTE_BYTES)


def window(request: pb.GetExposureStatementRequest, *, newest: int) -> Window:
    """Return the days of a statement.

    Args:
        request: the request.
        newest: the last day that there can be, and the default. Days since 1970-01-01.

    Raises:
        InvalidField: a day that is none or lies after ``newest``, or a window that is empty or too long.
    """
    last = _day("last_day", request.last_day) if request.last_day else newest
    if last > newest:
        raise InvalidField("last_day", f"must be at most {_text(newest)}, the last day to state")
    default = max(last - DEFAULT_DAYS + 1, 0)
    first = _day("first_day", request.first_day) if request.first_day else default
    if not 1 <= last - first + 1 <= MAX_DAYS:
        raise InvalidField("first_day", f"must be one to {MAX_DAYS} days before the day after last_day")
    return Window(first, last)


def nonce(value: str) -> str:
    """Return a nonce, checked for its length and characters."""
    fields.limited("nonce", value, 64)
    if not _NONCE.fullmatch(value):
        raise InvalidField("nonce", "must hold letters, digits, - and _ alone")
    return value


def half_life(request: pb.GetExposureBalanceRequest) -> float:
    """Return the half-life of a balance in days."""
    if not request.HasField("half_life_days"):
        return DEFAULT_HALF_LIFE_DAYS
    return checks.between("half_life_days", request.half_life_days, 0.01, 3650)


def collection(value: str) -> str:
    """Return the name of a collection, which must not be empty."""
    return fields.limited("collection", value, fields.MAX_NAME_BYTES, min_bytes=1)


@dataclass(frozen=True, slots=True)
class Draft:
    """A statement without nonce and time, as JSON: what all readers of it get the same."""

    _parts: tuple[bytes, bytes, bytes]

    @property
    def size(self) -> int:
        """Return how long it is. Bytes."""
        return sum(map(len, self._parts))

    def issued(self, nonce: str, issued_at_us: int) -> bytes:
        """Return the statement with its nonce and its time, in microseconds since 1970."""
        at = (_EPOCH_TIME + timedelta(microseconds=issued_at_us)).isoformat(timespec="microseconds")
        until_time, until_nonce, rest = self._parts
        named = b',"nonce":"%b"' % nonce.encode() if nonce else b""
        return b"".join((until_time, at.encode(), until_nonce, named, rest))


def draft(tenant: str, name: str, days: Window, stated: Stated, privacy: Privacy) -> Draft:
    """Write a statement, the same bytes for the same statement: without blanks, names sorted."""
    message = pb.ExposureStatement(
        tenant=tenant,
        provider=name,
        first_day=_text(days.first_day),
        last_day=_text(days.last_day),
        configurations=[
            pb.ProviderExposure(
                configuration=codec.configuration_message(one.configuration),
                num_found=one.num_found,
                num_shown=one.num_shown,
                num_cited=one.num_cited,
                exposure=codec.estimate(one.exposure),
                target=codec.estimate(one.target),
                owed=codec.estimate(one.owed),
            )
            for one in stated.configurations
        ],
        num_left_out=stated.num_left_out,
        min_asks=privacy.min_asks,
        epsilon=privacy.epsilon,
    )
    content = json_format.MessageToDict(message)
    bounds = ("", "issuedAt", "nonce", "~")  # where in the order of names those of each reader stand
    before, between, after = (
        _members({one: value for one, value in content.items() if low < one < high})
        for low, high in pairwise(bounds)
    )
    return Draft(
        (
            b'{%b"issuedAt":"' % (before and before + b","),
            b'Z"%b' % (between and b"," + between),
            b"%b}" % (after and b"," + after),
        )
    )


def _members(content: Mapping[str, Any]) -> bytes:
    """Return what stands between the braces of an object."""
    text = json.dumps(content, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return text[1:-1].encode()


def balance(providers: Sequence[ProviderBalance], as_of_us: int) -> pb.GetExposureBalanceResponse:
    """Write what providers are owed."""
    message = pb.GetExposureBalanceResponse(
        providers=[
            pb.ProviderBalance(provider=one.provider, target=one.target, exposure=one.exposure)
            for one in providers
        ]
    )
    message.as_of.FromMicroseconds(as_of_us)
    return message


def _text(day: int) -> str:
    """Return a day, counted from 1970-01-01, as text."""
    return (_EPOCH + timedelta(days=day)).isoformat()


def _day(field: str, value: str) -> int:
    """Return the number of days from 1970-01-01 to the day that a text names."""
    try:
        if _DAY.fullmatch(value):
            found = (date.fromisoformat(value) - _EPOCH).days
            if found >= 0:
                return found
    except ValueError:
        pass
    raise InvalidField(field, "must be a day such as 2026-11-01, from 1970-01-01")
