"""A Triton server as a child process: started, asked whether it serves, watched, stopped."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import grpc
from tritonclient.grpc.aio import InferenceServerClient
from tritonclient.utils import InferenceServerException

from meshkit import parent
from meshkit.security.certificates import Certificates, channel_credentials
from services.generator.triton import stubs
from services.generator.triton.environment import TritonRuntime

_CHECK_S: Final = 2.0
_LOOKS: Final = 3
_POLL_S: Final = 0.05
_MARGIN_S: Final = 2.0


class WrongServerError(Exception):
    """Another server answers on the port."""


@dataclass(frozen=True, slots=True)
class Tls:
    """How a server speaks TLS; all of it files of PEM.

    Attributes:
        chain: its certificate, and those between it and an authority.
        key: the certificate's key.
        authorities: whose certificates are trusted; None for those that this machine trusts.
        mutual: whether callers must show a certificate of theirs.
    """

    chain: Path
    key: Path
    authorities: Path | None
    mutual: bool

    @property
    def options(self) -> dict[str, object]:
        """As the server's options."""
        return {
            # The one preempts the other.
            "grpc-use-ssl-mutual" if self.mutual else "grpc-use-ssl": "true",
            "grpc-server-cert": self.chain,
            "grpc-server-key": self.key,
            "grpc-root-cert": self.authorities if self.mutual else None,
        }

    def credentials(self) -> grpc.ChannelCredentials:
        """Of who looks whether the server serves: it shows the server's own certificate.

        Raises:
            CertificateError: the files cannot be used.
        """
        return channel_credentials(Certificates(self.chain, self.key, self.authorities).material)


@dataclass(frozen=True, slots=True)
class Launch:
    """How a server is started.

    Attributes:
        id: what it calls itself.
        repository: its model repository.
        host: address to listen on.
        grpc_port: port of gRPC.
        http_port: port of HTTP; None: none.
        metrics_port: port of metrics; None: none.
        control: ``none``, ``poll`` or ``explicit``: who decides what is loaded.
        region_prefix: prefix of its regions of shared memory.
        exit_timeout_s: seconds that running requests get when it stops.
        tls: how it speaks TLS; None: it speaks plainly.
        trace_url: where its own spans go by OTLP over HTTP; None: it makes none.
    """

    id: str
    repository: Path
    host: str
    grpc_port: int
    http_port: int | None
    metrics_port: int | None
    control: str
    region_prefix: str
    exit_timeout_s: int
    tls: Tls | None = None
    trace_url: str | None = None

    def client(self) -> InferenceServerClient:
        """Who looks whether the server serves, from this machine."""
        host = "127.0.0.1" if self.host == "0.0.0.0" else self.host  # noqa: S104 - no certificate is for all
        creds = None if self.tls is None else self.tls.credentials()
        return InferenceServerClient(f"{host}:{self.grpc_port}", creds=creds)

    def command(self, runtime: TritonRuntime) -> list[str]:
        """The command line."""
        options: dict[str, object] = {
            "id": self.id,
            "model-repository": self.repository,
            "backend-directory": runtime.backends,
            "grpc-address": self.host,
            "grpc-port": self.grpc_port,
            # Our channels ask every 30 s whether the connection still is; by default that is too often.
            "grpc-http2-min-recv-ping-interval-without-data": 10_000,
            "grpc-keepalive-permit-without-calls": 1,
            "allow-http": _switch(self.http_port is not None),
            "http-address": self.host,
            "http-port": self.http_port,
            "allow-metrics": _switch(self.metrics_port is not None),
            "metrics-address": self.host,
            "metrics-port": self.metrics_port,
            "allow-gpu-metrics": "false",
            "pinned-memory-pool-byte-size": 0,
            "model-control-mode": self.control,
            "exit-timeout-secs": self.exit_timeout_s,
            "backend-config": f"python,shm-region-prefix-name={self.region_prefix}",
        }
        if self.control == "poll":
            options["repository-poll-secs"] = 1
        if self.control == "explicit":
            options["load-model"] = "*"
        if self.tls is not None:
            options |= self.tls.options
        flags = [f"--{name}={value}" for name, value in options.items() if value is not None]
        if self.trace_url is not None:
            # A rate of 0 leaves the choice to callers: requests that bring a trace are traced, no others.
            settings = ("mode=opentelemetry", "level=TIMESTAMPS", "rate=0")
            exporter = (f"opentelemetry,url={self.trace_url}", "opentelemetry,resource=service.name=triton")
            flags += [f"--trace-config={setting}" for setting in (*settings, *exporter)]
        return [str(runtime.server), *flags, "--disable-auto-complete-config"]


class TritonProcess:
    """A running server.

    Use :meth:`start` to make one.
    """

    def __init__(self, launch: Launch, process: asyncio.subprocess.Process) -> None:
        self._launch = launch
        self._process = process

    @classmethod
    async def start(cls, launch: Launch, runtime: TritonRuntime, base: Mapping[str, str]) -> Self:
        """Starts it with the environment ``base`` and what its runtime needs; it ends with this process."""
        environment = {name: value for name, value in base.items() if not name.startswith("PYTHON")}
        process = await asyncio.create_subprocess_exec(
            *launch.command(runtime),
            stdin=asyncio.subprocess.DEVNULL,
            env={**environment, **runtime.variables},
            preexec_fn=parent.stop_with_parent,  # this process has no other threads yet
        )
        return cls(launch, process)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    async def ended(self) -> int:
        """Waits for its end; the exit status, negative for a signal."""
        return await self._process.wait()

    async def ready(self) -> None:
        """Waits until it and every model of its serve; forever if they never do.

        Raises:
            WrongServerError: another server has the port.
        """
        async with AsyncExitStack() as stack:
            client = self._launch.client()
            stack.push_async_callback(client.close)
            while True:
                try:
                    if await client.is_server_ready(client_timeout=_CHECK_S):
                        name = (await client.get_server_metadata(client_timeout=_CHECK_S)).name
                        if name != self._launch.id:
                            raise WrongServerError(f"the server {name!r} has port {self._launch.grpc_port}")
                        return
                except (InferenceServerException, grpc.RpcError):
                    pass
                await asyncio.sleep(_POLL_S)

    async def model_died(self, interval_s: float) -> None:
        """Returns when a model that Triton calls ready has no process, and goes on having none.

        Triton does not notice. Callers may, and load the model anew; for that they have some looks' time.

        Args:
            interval_s: seconds between two looks.
        """
        async with AsyncExitStack() as stack:
            client = self._launch.client()
            stack.push_async_callback(client.close)
            missing = 0
            while missing < _LOOKS:
                await asyncio.sleep(interval_s)
                try:
                    index = await client.get_model_repository_index(client_timeout=_CHECK_S)
                except (InferenceServerException, grpc.RpcError):
                    continue
                ready = sum(one.state == "READY" for one in index.models)
                missing = missing + 1 if len(stubs.of_server(self.pid)) < ready else 0

    async def stop(self, grace_s: float) -> int:
        """Asks it to end, waits ``grace_s`` and a little, then ends it and its models; the exit status."""
        models = stubs.of_server(self.pid)
        try:
            return await self._stop(grace_s)
        finally:
            stubs.kill(models)

    async def _stop(self, grace_s: float) -> int:
        if self._process.returncode is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                async with asyncio.timeout(grace_s + _MARGIN_S):
                    await self._process.wait()
            except TimeoutError:
                self._process.kill()
        return await self._process.wait()


def _switch(on: bool) -> str:
    return "true" if on else "false"
