"""Start, watch and stop a Triton server as a child process."""

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

from evenmesh.wire.certificates import Certificates, channel_credentials
from evenmesh_generator.triton import stubs
from evenmesh_generator.triton.environment import TritonRuntime
from evenmesh_kit.process import parent

_CHECK_S: Final = 2.0
_LOOKS: Final = 3
_POLL_S: Final = 0.05
_MARGIN_S: Final = 2.0


class WrongServerError(Exception):
    """Raised when another server answers on the port."""


@dataclass(frozen=True, slots=True)
class Tls:
    """TLS files of a server, all PEM.

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
        """Return the settings as the server's options."""
        return {
            # The server takes one of the two options.
            "grpc-use-ssl-mutual" if self.mutual else "grpc-use-ssl": "true",
            "grpc-server-cert": self.chain,
            "grpc-server-key": self.key,
            "grpc-root-cert": self.authorities if self.mutual else None,
        }

    def credentials(self) -> grpc.ChannelCredentials:
        """Return the credentials for readiness checks, which show the server's own certificate.

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
        tls: its TLS files; None: no TLS.
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
        """Return a client that checks from this machine whether the server is ready."""
        host = "127.0.0.1" if self.host == "0.0.0.0" else self.host  # noqa: S104 - no certificate is for all
        creds = None if self.tls is None else self.tls.credentials()
        return InferenceServerClient(f"{host}:{self.grpc_port}", creds=creds)

    def command(self, runtime: TritonRuntime) -> list[str]:
        """Return the command line."""
        options: dict[str, object] = {
            "id": self.id,
            "model-repository": self.repository,
            "backend-directory": runtime.backends,
            "grpc-address": self.host,
            "grpc-port": self.grpc_port,
            # Our channels ping every 30 s; by default the server counts that as abuse.
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
        """Start the server in the environment ``base`` plus what its runtime needs; it ends with this
        process.
        """
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
        """Return the process id."""
        return self._process.pid

    async def ended(self) -> int:
        """Wait for the server's end and return its exit status, negative for a signal."""
        return await self._process.wait()

    async def ready(self) -> None:
        """Wait until the server and all its models are ready; forever if they never are.

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
        """Return when a model that Triton calls ready has had no process for several checks.

        Triton does not notice. Callers may reload the model, and have the time of several checks to do so.

        Args:
            interval_s: seconds between two checks.
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
        """Terminate the server, kill it after ``grace_s`` and a margin, and return its exit status."""
        try:
            return await self._stop(grace_s)
        finally:
            # By their regions: those of a server that ended by itself are nobody's children any more.
            stubs.kill(stubs.of_regions(lambda name: name.startswith(self._launch.region_prefix)))

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
