"""Start the services, keep them running, and stop them."""

import asyncio
import os
import signal
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final, Self

from evenmesh.local_mesh import LocalMeshError, MeshState, ServiceState
from evenmesh_mesh import certificates
from evenmesh_mesh.backup.restoring import interrupted
from evenmesh_mesh.lock import LockHeldError, MeshLock
from evenmesh_mesh.logs import ServiceLog
from evenmesh_mesh.ports import Ports, PortTakenError
from evenmesh_mesh.process import ServiceProcess
from evenmesh_mesh.progress import Observe, Phase, Progress, unobserved
from evenmesh_mesh.services import STOP_ORDER, Service
from evenmesh_mesh.settings import HOST, MeshSettings, service_environment

_TRIM_S: Final = 60.0


class MeshStartError(LocalMeshError):
    """Raised when the mesh cannot start; one line that says what to do."""


class Mesh:
    """An async context manager that runs the mesh of one home: all serve inside, none is left after.

    A crashed service is restarted on the same port, after a delay that doubles with every consecutive crash.
    If this process is killed, the services end by themselves.

    Args:
        settings: settings of the mesh.
        observe: called with every step.

    Raises:
        MeshStartError: on entry; nothing is left running.
    """

    def __init__(self, settings: MeshSettings, observe: Observe = unobserved) -> None:
        self.settings = settings
        self._observe = observe
        self._ports = Ports(settings.services, settings.port)
        self._lock = MeshLock(settings.home)
        self._logs = {service.name: ServiceLog(settings.logs, service.name) for service in settings.services}
        self._processes: dict[str, ServiceProcess] = {}
        self._restarts = {service.name: 0 for service in settings.services}
        self._ready = False
        self._keepers: list[asyncio.Task[None]] = []
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            self._enter(stack)
            stack.push_async_callback(self._stop)
            await self._start()
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._stack.aclose()

    @property
    def state(self) -> MeshState:
        """Process ids and addresses of the services."""
        return MeshState(
            pid=os.getpid(),
            ready=self._ready,
            services={
                service.name: ServiceState(
                    address=self._address(service),
                    pid=process.pid
                    if (process := self._processes.get(service.name)) is not None and process.running
                    else None,
                    restarts=self._restarts[service.name],
                )
                for service in self.settings.services
            },
        )

    async def watch(self) -> None:
        """Keep the services running until cancelled."""
        while True:
            done, _ = await asyncio.wait(self._keepers, timeout=_TRIM_S, return_when=asyncio.FIRST_COMPLETED)
            for keeper in done:
                await keeper
            for log in self._logs.values():
                log.trim()

    def kill(self) -> None:
        """Kill every service at once, for a second signal while the mesh stops."""
        for process in self._processes.values():
            process.kill()

    def _enter(self, stack: AsyncExitStack) -> None:
        # Services would start with it, as it may be renewed while they run; but nobody would reach them.
        if invalid := certificates.invalid({**os.environ, **self.settings.environment}):
            raise MeshStartError("; ".join(invalid))
        try:
            stack.enter_context(self._lock)
            if half := interrupted(self.settings.home):
                raise MeshStartError(half)
            stack.enter_context(self._ports)
            for log in self._logs.values():
                log.begin()
            self._write_state()
        except LockHeldError as exc:
            raise MeshStartError(already_running(exc.state, self.settings.home)) from exc
        except PortTakenError as exc:
            raise MeshStartError(
                f"port {exc.port} ({exc.service}) is taken by another program: end that one, or choose other "
                f"ports with `evenmesh up --port {_other_port(self.settings.port)}` (0 picks free ones)"
            ) from exc
        except OSError as exc:
            raise MeshStartError(cannot_write(exc, self.settings.home)) from exc

    async def _start(self) -> None:
        serving = [asyncio.get_running_loop().create_future() for _ in self.settings.services]
        self._keepers = [
            asyncio.create_task(self._keep(service, first), name=f"keep-{service.name}")
            for service, first in zip(self.settings.services, serving, strict=True)
        ]
        done, waiting = await asyncio.wait(
            serving, timeout=self.settings.start_s, return_when=asyncio.FIRST_EXCEPTION
        )
        for first in waiting:
            first.cancel()
        for failure in [exc for first in done if (exc := first.exception()) is not None]:
            raise failure
        if waiting:
            late = [
                service.name
                for service, first in zip(self.settings.services, serving, strict=True)
                if first in waiting
            ]
            raise MeshStartError(
                f"not serving after {self.settings.start_s:g} s: {', '.join(late)}; see {self.settings.logs}"
            )
        self._ready = True
        self._write_state()

    async def _keep(self, service: Service, first: asyncio.Future[None]) -> None:
        """Run one service and restart it when it ends; ``first`` gets the outcome of its first start."""
        loop, crashes = asyncio.get_running_loop(), 0
        while True:
            since = loop.time()
            try:
                process = await self._spawn(service)
            except OSError as exc:
                # The machine may have room for a process later: this must not end the mesh.
                if not first.done():
                    first.set_exception(MeshStartError(f"the {service.name} cannot be started: {exc}"))
                    return
                why = f"cannot be started: {exc}"
            else:
                serving = asyncio.create_task(process.serving())
                ended = asyncio.create_task(process.ended())
                try:
                    await asyncio.wait([serving, ended], return_when=asyncio.FIRST_COMPLETED)
                    since = loop.time()
                    failed = serving.exception() if serving.done() else None
                    if failed is not None and not first.done():
                        why = f"{service.name} cannot be asked how it is: {failed}"
                        first.set_exception(MeshStartError(why))
                        return
                    if process.running and failed is None:
                        self._tell(service, Phase.SERVING)
                        if not first.done():
                            first.set_result(None)
                    code = await ended
                finally:
                    serving.cancel()
                    ended.cancel()
                if not first.done():
                    first.set_exception(MeshStartError(self._why(service, code)))
                    return
                why = self._reason(service, code)
            crashes = 1 if loop.time() - since > self.settings.stable_s else crashes + 1
            delay = min(self.settings.max_backoff_s, self.settings.backoff_s * 2.0 ** min(crashes - 1, 32))
            self._restarts[service.name] += 1
            self._tell(service, Phase.CRASHED, f"{why}; starts again in {delay:g} s")
            self._write_state()
            await asyncio.sleep(delay)

    async def _spawn(self, service: Service) -> ServiceProcess:
        self._tell(service, Phase.STARTING)
        environment = service_environment(
            service,
            self.settings,
            self._ports.by_service,
            base=os.environ,
            supervisor_pid=os.getpid(),
        )
        process = await ServiceProcess.start(
            service, self._address(service), environment, self._logs[service.name]
        )
        self._processes[service.name] = process
        self._write_state()
        return process

    async def _stop(self) -> None:
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)
        for group in STOP_ORDER:
            await asyncio.gather(*(self._end(name) for name in group if name in self._processes))

    async def _end(self, name: str) -> None:
        process = self._processes[name]
        await process.stop(self.settings.grace_s)
        self._tell(process.service, Phase.STOPPED)

    def _why(self, service: Service, code: int) -> str:
        log = self._logs[service.name]
        return f"the {service.name} does not start: {log.complaint() or _ending(code)} (log: {log.path})"

    def _reason(self, service: Service, code: int) -> str:
        """Return why a service that served ended; what a signal ended says nothing itself."""
        ending = _ending(code)
        if code < 0:
            return ending
        log = self._logs[service.name]
        said = log.complaint()
        return f"{ending}{f': {said}' if said else ''} (log: {log.path})"

    def _address(self, service: Service) -> str:
        return f"{HOST}:{self._ports.by_service[service.name]}"

    def _tell(self, service: Service, phase: Phase, detail: str = "") -> None:
        self._observe(Progress(service.name, phase, detail))

    def _write_state(self) -> None:
        try:
            self._lock.write(self.state)
        except OSError:
            # A full disk makes the state of `evenmesh status` outdated; it must not end the mesh.
            if not self._ready:
                raise


def already_running(state: MeshState | None, home: Path) -> str:
    """Make the error for a second start."""
    if state is None:
        return f"a mesh is being started under {home} already; wait for it, or stop it with `evenmesh down`"
    address = state.addresses.get("orchestrator", "an address not known yet")
    return f"a mesh is running already: orchestrator at {address} (pid {state.pid}); `evenmesh down` stops it"


def cannot_write(exc: OSError, home: Path) -> str:
    """Make the error for a home that cannot be used."""
    return (
        f"cannot write to {exc.filename or home}: {exc.strerror or exc}; "
        "set EVENMESH_HOME (or --home) to a folder you can write to"
    )


def _other_port(port: int) -> int:
    return 8070 if port != 8070 else 9070


def _ending(code: int) -> str:
    if code >= 0:
        return f"ended with status {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"
