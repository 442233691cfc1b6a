"""Queues and alerts of the mesh, read from the Prometheus that scrapes it."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any, Final
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import urlopen

_QUEUES: Final = (
    "sum by (__name__, service_name, unit) "
    '({__name__=~"evenmesh_admission_(in_flight|waiting|capacity)", service_name!=""})'
)
_TIMEOUT_S: Final = 3.0
_MOST_BYTES: Final = 2**21
_MOST_ALERTS: Final = 100
_FRESH_S: Final = 4.0


class Monitoring:
    """Reads queues and alerts, at most once in four seconds however many pages ask.

    Args:
        address: of Prometheus.
    """

    def __init__(self, address: str) -> None:
        self._address = address.rstrip("/")
        self._reading = asyncio.Lock()
        self._found: dict[str, Any] = {}
        self._read_at = -_FRESH_S

    async def read(self) -> dict[str, Any]:
        """Return ``queues`` and ``alerts``, or the ``error`` that kept them away."""
        async with self._reading:
            if time.monotonic() - self._read_at >= _FRESH_S:
                try:
                    self._found = await asyncio.to_thread(self._ask)
                except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
                    words = error.reason if isinstance(error, URLError) else error
                    self._found = {"error": f"Prometheus does not answer: {words}"}
                self._read_at = time.monotonic()
            return self._found

    def _ask(self) -> dict[str, Any]:
        queues: dict[tuple[str, str], dict[str, Any]] = {}
        for series in self._get("query", query=_QUEUES)["result"]:
            labels, (_, value) = series["metric"], series["value"]
            service, unit = labels["service_name"], labels.get("unit", "")
            one = queues.setdefault((service, unit), {"service": service, "unit": unit})
            one[labels["__name__"].removeprefix("evenmesh_admission_")] = float(value)
        alerts = [
            {
                "name": one["labels"].get("alertname", ""),
                "severity": one["labels"].get("severity", ""),
                "summary": one.get("annotations", {}).get("summary", ""),
                "firing": one["state"] == "firing",
                "since": one["activeAt"],
            }
            for one in self._get("alerts")["alerts"]
        ]
        alerts.sort(key=lambda one: (not one["firing"], one["severity"], one["name"]))
        return {
            "queues": [queues[key] for key in sorted(queues)],
            "alerts": alerts[:_MOST_ALERTS],
            "num_alerts": len(alerts),
        }

    def _get(self, path: str, **query: str) -> Any:
        address = f"{self._address}/api/v1/{path}?{urlencode(query)}"
        with urlopen(address, timeout=_TIMEOUT_S) as response:  # noqa: S310 - http or https, by the settings
            body = response.read(_MOST_BYTES + 1)
        if len(body) > _MOST_BYTES:
            raise ValueError(f"more than {_MOST_BYTES:,} bytes")
        return json.loads(body)["data"]
