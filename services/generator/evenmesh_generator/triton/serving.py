"""Serve the generator's models with Triton: prepare runtime and repository, run the server."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import signal
import socket
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, Self

from evenmesh.wire.certificates import CertificateError
from evenmesh.wire.security import SYSTEM
from evenmesh_generator.settings import GeneratorSettings
from evenmesh_generator.triton import environment, shared_memory
from evenmesh_generator.triton.environment import TritonRuntime
from evenmesh_generator.triton.models import served_models, threads_of
from evenmesh_generator.triton.repository import write_repository
from evenmesh_generator.triton.server import Launch, Tls, TritonProcess
from evenmesh_generator.triton.settings import TritonSettings
from evenmesh_kit.process import parent

_log = logging.getLogger("evenmesh.triton")
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PORTS: Final = ("port", "http_port", "metrics_port")


class ServeError(Exception):
    """Raised when the server cannot start, or ends unexpectedly; one line."""


class Serving:
    """Prepares and runs one server; a context manager.

    Preparing blocks, and is for a process that does nothing else yet.

    Args:
        settings: where it listens, and which server it is.
        generator: which models it serves.

    Raises:
        RuntimeUnavailableError: on entry; there is no server on this machine.
        SettingsError: on entry; a model cannot be had.
        ServeError: on entry; a port is taken.
    """

    def __init__(self, settings: TritonSettings, generator: GeneratorSettings) -> None:
        self._settings = settings
        self._generator = generator
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        settings = self._settings
        with ExitStack() as stack:
            shared_memory.sweep()
            ports = {
                name: self._reserve(name, stack) for name in _PORTS if getattr(settings, name) is not None
            }
            self._runtime = self._find_runtime()
            self._launch = Launch(
                id=settings.id or f"{shared_memory.prefix()}{secrets.token_hex(4)}",
                repository=settings.repository or self._write_repository(),
                host=settings.host,
                grpc_port=ports["port"],
                http_port=ports.get("http_port"),
                metrics_port=ports.get("metrics_port"),
                control=settings.model_control,
                region_prefix=shared_memory.prefix(),
                exit_timeout_s=settings.exit_timeout_s,
                tls=_tls(settings),
                trace_url=settings.trace_url,
            )
            stack.callback(shared_memory.sweep_own)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    async def run(self) -> None:
        """Serve until a signal, or until the parent process ends.

        Raises:
            ServeError: the server did not start, ended by itself, or one of its models' processes did.
            WrongServerError: another server has the port.
        """
        settings = self._settings
        asked = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, asked.set)
        if settings.exit_with_parent:
            parent.stop_with_parent()
        threads = str(threads_of(settings, self._generator))
        base = {"OMP_NUM_THREADS": threads, **os.environ, "TOKENIZERS_PARALLELISM": "false"}
        process = await TritonProcess.start(self._launch, self._runtime, base)
        try:
            await self._watch(process, asked)
        finally:
            await process.stop(settings.exit_timeout_s)
            if settings.port_file is not None:
                settings.port_file.unlink(missing_ok=True)

    async def _watch(self, process: TritonProcess, asked: asyncio.Event) -> None:
        ready = asyncio.create_task(process.ready())
        ended = asyncio.create_task(process.ended())
        ends: set[asyncio.Task[Any]] = {ended, asyncio.create_task(asked.wait())}
        if self._settings.exit_with_parent:
            ends.add(asyncio.create_task(parent.wait_until_gone(self._settings.parent_pid or os.getppid())))
        waiting: set[asyncio.Task[Any]] = {ready, *ends}
        died: asyncio.Task[None] | None = None
        try:
            while not any(one.done() for one in ends):
                done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                waiting -= done
                if ready in done:
                    await ready
                    self._announce()
                    died = asyncio.create_task(process.model_died(self._settings.check_s))
                    waiting.add(died)
                if died is not None and died in done:
                    await died
                    raise ServeError(
                        "a process of Triton's Python backend has ended; the server cannot go on"
                    )
            if ended.done() and not asked.is_set():
                raise ServeError(f"tritonserver ended with status {ended.result()}")
        finally:
            for one in {*waiting, *ends}:
                one.cancel()

    def _announce(self) -> None:
        launch, file = self._launch, self._settings.port_file
        ports = {"grpc": launch.grpc_port, "http": launch.http_port, "metrics": launch.metrics_port}
        _log.info("serving", extra={"id": launch.id, "ports": ports})
        if file is not None:
            new = file.with_name(file.name + ".new")
            new.write_text(f"{launch.host}:{launch.grpc_port}", encoding="utf-8")
            new.replace(file)

    def _find_runtime(self) -> TritonRuntime:
        settings = self._settings
        if settings.server is not None:
            return TritonRuntime.installed(settings.server, settings.backends)
        if not environment.is_prepared(settings.runtime_home):
            _log.info("making Triton's runtime; this is done once")
        return environment.prepare(settings.runtime_home)

    def _write_repository(self) -> Path:
        repository = self._settings.home / "triton" / "repository"
        packages = self._settings.packages or self._runtime.packages
        models = served_models(self._settings, self._generator, packages)
        write_repository(models, repository)
        return repository

    def _reserve(self, name: str, stack: ExitStack) -> int:
        """Reserve a port with a socket that stays bound and never listens."""
        wanted = getattr(self._settings, name)
        one = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind((self._settings.host, wanted))
        except OSError as error:
            raise ServeError(f"{name} {wanted} of {self._settings.host}: {error.strerror or error}") from None
        port: int = one.getsockname()[1]
        return port


def _tls(settings: TritonSettings) -> Tls | None:
    """Return the server's TLS files, checked; None without TLS.

    Raises:
        ServeError: they cannot.
    """
    if settings.tls_cert is None or settings.tls_key is None:
        return None
    authorities = None if settings.tls_ca is None or str(settings.tls_ca) == SYSTEM else settings.tls_ca
    tls = Tls(settings.tls_cert, settings.tls_key, authorities, settings.tls_clients == "required")
    try:
        tls.credentials()
    except CertificateError as error:
        raise ServeError(f"EVENMESH_TLS_CERT, _KEY, _CA: {error}") from None
    return tls
