"""Find certificates that are not valid now, or not for long."""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509

from evenmesh.wire.security import SYSTEM

SOON: Final = timedelta(days=14)
"""Time before the end of a certificate from which on it is to be renewed, as the alert has it."""


def invalid(environment: Mapping[str, str], now: datetime | None = None) -> list[str]:
    """Return a line for each file that no connection can use now; files that cannot be read have none."""
    at = now or datetime.now(UTC)
    lines = []
    for name, (begins, ends) in _valid(environment, at):
        if ends <= at:
            lines.append(f"{name} expired at {_text(ends)}: renew it")
        elif begins > at:
            lines.append(f"{name} is not valid before {_text(begins)}: compare the clock of this machine")
    return lines


def ending(environment: Mapping[str, str], now: datetime | None = None) -> list[str]:
    """Return a line for each file that is valid now and ends within 14 days."""
    at = now or datetime.now(UTC)
    return [
        f"{name} ends at {_text(ends)}: renew it before"
        for name, (begins, ends) in _valid(environment, at)
        if begins <= at < ends <= at + SOON
    ]


def _valid(environment: Mapping[str, str], now: datetime) -> Iterator[tuple[str, tuple[datetime, datetime]]]:
    """Yield variable and file of certificates, and from when to when connections can use them."""
    if chain := _periods(given := environment.get("EVENMESH_TLS_CERT", "")):
        # A chain needs all of its certificates.
        found = max(begins for begins, _ in chain), min(ends for _, ends in chain)
        yield f"EVENMESH_TLS_CERT={given}", found
    if authorities := _periods(given := environment.get("EVENMESH_TLS_CA", "")):
        # One valid authority is enough, as during a change of authorities.
        begun = [period for period in authorities if period[0] <= now]
        yield f"EVENMESH_TLS_CA={given}", max(begun or authorities, key=lambda period: period[1])


def _periods(file: str) -> list[tuple[datetime, datetime]]:
    """Return when each certificate of a file begins and ends; nothing of a file that cannot be read."""
    if file in ("", SYSTEM):
        return []
    try:
        found = x509.load_pem_x509_certificates(Path(file).read_bytes())
        return [(one.not_valid_before_utc, one.not_valid_after_utc) for one in found]
    except (OSError, ValueError, x509.InvalidVersion):
        return []  # whoever loads it says why


def _text(at: datetime) -> str:
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")
