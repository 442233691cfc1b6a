"""A gateway as a process, before a mesh that runs."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Self

from evenmesh import Addresses
from tests.support.forked import ForkedModule


class GatewayProcess:
    """A context manager that runs a gateway.

    Args:
        folder: where its log and its address are.
        addresses: the services behind it.
        environment: further variables.
    """

    def __init__(self, folder: Path, addresses: Addresses, **environment: str) -> None:
        self._folder = folder
        self._environment = {
            **os.environ,
            "EVENMESH_HOME": str(folder),
            "EVENMESH_GATEWAY_PORT": "0",
            "EVENMESH_GATEWAY_PORT_FILE": str(folder / "gateway.address"),
            **{f"EVENMESH_GATEWAY_{name.upper()}_TARGET": address for name, address in addresses.items()},
            **environment,
        }
        self.log = folder / "gateway.log"
        self.process: ForkedModule

    def __enter__(self) -> Self:
        file = self._folder / "gateway.address"
        self.process = ForkedModule("evenmesh_gateway", self._environment, self.log)
        deadline = time.monotonic() + 120
        while not file.exists() or not file.read_text():
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        self.address = file.read_text()
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        try:
            self.process.wait(60)
        finally:
            self.process.kill()
            self.process.wait(30)

    @property
    def url(self) -> str:
        """Its address, without TLS."""
        return f"http://{self.address}"
