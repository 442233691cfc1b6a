"""Parameters of PostgreSQL's URLs, which providers write as libpq reads them, for the driver asyncpg."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import urlencode

from sqlalchemy import URL

_OF_LIBPQ: Final = frozenset(
    {
        *("application_name", "target_session_attrs", "sslmode", "sslrootcert", "sslcert", "sslkey"),
        *("sslpassword", "sslcrl", "sslnegotiation", "ssl_min_protocol_version", "ssl_max_protocol_version"),
    }
)
_OF_THE_DRIVER: Final = frozenset({"host", "port", "prepared_statement_cache_size", "ssl"})


def unknown_parameters(url: URL) -> list[str]:
    """Return the parameters that mean nothing here; a connection with them would fail."""
    return sorted(set(url.query) - _OF_LIBPQ - _OF_THE_DRIVER)


def known_parameters() -> list[str]:
    """Return the parameters that a URL may have."""
    return sorted(_OF_LIBPQ | _OF_THE_DRIVER)


def for_driver(url: URL) -> tuple[URL, dict[str, Any]]:
    """Return a URL without libpq's parameters, and them as an argument of the driver, which reads them so."""
    ours = {name: value for name, value in url.query.items() if name in _OF_LIBPQ}
    if not ours:
        return url, {}
    return url.difference_update_query(ours), {"dsn": f"postgresql:///?{urlencode(ours)}"}
