"""A real Prometheus, as a process of its own that scrapes and is asked."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import yaml

from tests.support.programs import required
from tests.support.waiting import until_answers

_STARTS_S: Final = 60.0
_ENDS_S: Final = 30.0


@contextmanager
def reserved_ports(count: int) -> Iterator[list[int]]:
    """Free ports that nobody else is given while this lasts: bound, and never listened on.

    Whoever allows addresses to be used again, as servers do, can listen on them beside it.
    """
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            one.bind(("127.0.0.1", 0))
        yield [one.getsockname()[1] for one in sockets]


class Prometheus:
    """One that runs.

    Args:
        address: ``host:port`` of its API.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self._base = f"http://{address}/api/v1"

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The series that an expression has now, each with ``metric`` and ``value``."""
        found = self._get("query", query=expression)["result"]
        return found if isinstance(found, list) else []

    def rules(self) -> list[dict[str, Any]]:
        """All rules, each with ``name``, ``health``, ``lastError``, and ``state`` of alerts."""
        return [rule for group in self._get("rules")["groups"] for rule in group["rules"]]

    def series(self, selector: str) -> list[dict[str, str]]:
        """Labels of all series that a selector takes, ``__name__`` among them."""
        found: list[dict[str, str]] = self._get("series", **{"match[]": selector})
        return found

    def _get(self, path: str, **parameters: str) -> Any:
        url = f"{self._base}/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=30) as reply:  # noqa: S310 - of this machine
            return json.load(reply)["data"]


@contextmanager
def running(folder: Path, targets: Mapping[str, str], rules: Sequence[Path]) -> Iterator[Prometheus]:
    """One that scrapes each job's target every second and evaluates the rules as often.

    Args:
        folder: an empty one for its configuration, data and log.
        targets: ``host:port`` by job.
        rules: files.
    """
    path = required("prometheus")
    configuration = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(one) for one in rules],
        "scrape_configs": [
            {
                "job_name": "evenmesh",
                "static_configs": [
                    {"targets": [target], "labels": {"job": job}} for job, target in targets.items()
                ],
            }
        ],
    }
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(configuration))
    with reserved_ports(1) as (port,), _started(path, folder, port) as address:
        yield Prometheus(address)


@contextmanager
def _started(path: str, folder: Path, port: int) -> Iterator[str]:
    address = f"127.0.0.1:{port}"
    words = [
        path,
        f"--config.file={folder / 'prometheus.yaml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={address}",
        "--log.level=warn",
    ]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(words, stdout=log, stderr=log)
    try:
        until_answers(process, f"http://{address}/-/ready", folder / "log", _STARTS_S)
        yield address
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(_ENDS_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
