"""Run a service in this process: from its settings to its exit code."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Final, TypeVar

import uvloop

from evenmesh_kit.compute import idle_memory
from evenmesh_kit.process import arguments, parent
from evenmesh_kit.process.start import ServerStartError
from evenmesh_kit.rpc.server import MeshServer, Service
from evenmesh_kit.settings import ServiceSettings, SettingsError, load
from evenmesh_kit.telemetry import logs
from evenmesh_kit.telemetry.setup import Telemetry

_SWITCH_S: Final = 0.001
"""How long a thread computes in Python while another one wants to. Seconds.

A model takes and leaves Python's lock hundreds of times for one answer, and waits so long each time. Beside a
thread that computes in Python it takes three times as long as alone with Python's 5 ms, and twice with this.
"""
GIVE_BACK_S: Final = 30.0
"""Time between two moments at which a process that answers no call gives memory back. Seconds."""
_HURRY_S: Final = 2.0
"""Time to end after the second signal. Seconds."""

S = TypeVar("S", bound=ServiceSettings)


@contextlib.contextmanager
def asked_to_end(settings: ServiceSettings, hurry: Callable[[], object]) -> Iterator[asyncio.Task[None]]:
    """Yield a task that is done at SIGTERM or SIGINT, or, if the settings say so, when the parent ends.

    After another signal the process ends within two seconds, whatever its threads still compute.

    Args:
        settings: say whether the parent counts.
        hurry: called at a signal after that.
    """
    ending = asyncio.Event()
    numbers = (signal.SIGTERM, signal.SIGINT)

    def on_signal() -> None:
        if ending.is_set():
            hurry()
            return
        ending.set()
        for number in numbers:
            # Runs even while the loop waits for a thread; the loop still calls this function too.
            signal.signal(number, _end_soon)

    loop = asyncio.get_running_loop()
    for number in numbers:
        loop.add_signal_handler(number, on_signal)
    waits: list[asyncio.Task[Any]] = [asyncio.create_task(ending.wait())]
    if settings.exit_with_parent:
        parent.stop_with_parent()
        waits.append(asyncio.create_task(parent.wait_until_gone(settings.parent_pid or os.getppid())))

    async def first() -> None:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        ending.set()

    asked = asyncio.create_task(first())
    try:
        yield asked
    finally:
        for task in (asked, *waits):
            task.cancel()
        for number in numbers:
            loop.remove_signal_handler(number)


def _end_soon(number: int, _: object) -> None:
    """End the process in two seconds, if it has not ended by then."""
    ending = threading.Timer(_HURRY_S, os._exit, (128 + number,))
    ending.daemon = True
    ending.start()


def run_service(name: str, settings_type: type[S], make: Callable[[S, Telemetry], Service]) -> int:
    """Load a service's settings, make it, and serve until a signal; return the exit code, see :func:`run`.

    The process takes no arguments (:func:`evenmesh_kit.process.arguments.refuse`).
    """
    arguments.refuse(f"evenmesh_{name}", settings_type)

    async def main() -> None:
        settings = load(settings_type)
        logs.configure(name, settings)
        telemetry = Telemetry.from_settings(name, settings)
        await serve(name, settings, make(settings, telemetry), telemetry=telemetry)

    return run(main)


async def serve(name: str, settings: ServiceSettings, service: Service, *, telemetry: Telemetry) -> None:
    """Run a service until SIGTERM or SIGINT, or, if the settings say so, until its parent ends.

    The first signal drains within ``grace_s``; a second one ends running calls at once, and the process soon.

    Raises:
        ServerStartError: it cannot start; one line that says what to do.
    """
    hurry = asyncio.Event()
    with asked_to_end(settings, hurry.set) as asked:
        server = MeshServer(name, settings, service, telemetry=telemetry)
        # What a start imports and loads stays: looking for cycles in it takes a fifth of the time, now and
        # later.
        gc.disable()
        starting = asyncio.create_task(server.start())
        giving_back: asyncio.Task[None] | None = None
        try:
            await asyncio.wait((starting, asked), return_when=asyncio.FIRST_COMPLETED)
            if starting.done():
                starting.result()
                gc.freeze()
                gc.enable()
                giving_back = asyncio.create_task(_give_back_memory(server))
                await asked
            else:
                starting.cancel()
                await asyncio.wait((starting,))
        finally:
            gc.enable()
            draining = asyncio.create_task(server.stop())
            hurried = asyncio.create_task(hurry.wait())
            await asyncio.wait((draining, hurried), return_when=asyncio.FIRST_COMPLETED)
            if not draining.done():
                await server.stop(0)
            await draining
            for task in (hurried, *((giving_back,) if giving_back else ())):
                task.cancel()
            telemetry.shutdown()


async def _give_back_memory(server: MeshServer) -> None:
    """Give back memory that the start took, and from time to time what calls took."""
    while True:
        if not server.in_flight:
            await asyncio.to_thread(idle_memory.give_back)
        await asyncio.sleep(GIVE_BACK_S)


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> int:
    """Run a service's main coroutine on uvloop and return its exit code.

    0 after a clean stop; 2 if it could not start, with the reason on stderr in one line. A process that has
    not stopped two seconds after a second signal ends with 128 and the signal's number. What the process
    writes from now on is readable by its user alone.
    """
    os.umask(0o077)
    sys.setswitchinterval(_SWITCH_S)
    if sys.platform == "linux":
        # A thread that wakes lets the running one finish its slice: many threads hand over small messages,
        # and preempting each other takes a sixth of the processors. Threads begun later inherit it.
        with contextlib.suppress(OSError):  # a sandbox may forbid it: the service works, with more switches
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(main())
    except (SettingsError, ServerStartError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    except KeyboardInterrupt:
        return 130
    return 0
