"""A mesh of real processes on PostgreSQL, every connection of which goes through a proxy."""

from __future__ import annotations

import asyncio
import signal
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Self

import psutil
from sqlalchemy import make_url

from evenmesh import Addresses
from tests.faults.chaos.faults import DATABASE, SERVICES, Fault
from tests.faults.chaos.proxy import Proxy
from tests.support.killable import Killable
from tests.support.postgres import Postgres

MODULES = {name: f"evenmesh_{name}" for name in SERVICES}


class World:
    """The processes, and what happens to them; an async context manager.

    Args:
        home: where everything lives.
        postgres: the database of the evaluator and of the reranker, started.
    """

    def __init__(self, home: Path, postgres: Postgres) -> None:
        self._home = home
        self._postgres = postgres
        self._stack = AsyncExitStack()
        self.services: dict[str, Killable] = {}
        self.proxies: dict[str, Proxy] = {}

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        for service in self.services.values():
            service.kill()
        await self._stack.aclose()

    @property
    def addresses(self) -> Addresses:
        """Where clients find the services: behind the proxies."""
        return Addresses(**{name: self.proxies[name].address for name in SERVICES})

    async def _start(self) -> None:
        url = make_url(self._postgres.url)
        self.proxies[DATABASE] = await self._stack.enter_async_context(Proxy(f"127.0.0.1:{url.port}"))
        port = int(self.proxies[DATABASE].address.rpartition(":")[2])
        stored = url.set(drivername="postgresql", port=port).render_as_string()
        settings: dict[str, dict[str, str]] = {
            "orchestrator": {"GRACE_S": "1", "DEFAULT_RERANKER": "rankrag"},
            "retriever": {"ENCODER": "", "THREADS": "2"},
            "reranker": {"DATABASE_URL": stored, "DEFAULT_RERANKER": "rankrag"},
            "generator": {"THREADS": "1", "DEVICE": "cpu"},
            "evaluator": {"DATABASE_URL": stored},
        }
        for name in SERVICES:
            service = Killable(MODULES[name], name, self._home, **settings[name], LOG_LEVEL="WARNING")
            service.also(OMP_NUM_THREADS="1")
            self.services[name] = service
            self.proxies[name] = await self._stack.enter_async_context(Proxy(service.address))
        self.services["reranker"].also(EVENMESH_RERANKER_GENERATOR_TARGET=self.proxies["generator"].address)
        for name in ("retriever", "reranker", "generator", "evaluator"):
            target = {f"EVENMESH_ORCHESTRATOR_{name.upper()}_TARGET": self.proxies[name].address}
            self.services["orchestrator"].also(**target)
        await asyncio.gather(*(service.start() for service in self.services.values()))

    async def suffer(self, fault: Fault) -> None:
        """Lets a fault happen, from its beginning to its end."""
        proxy = self.proxies[fault.target]
        match fault.kind:
            case "kill":
                await self._kill(fault)
                return
            case "stop":
                stopped = self._processes(fault.target)
                for process in stopped:
                    process.send_signal(signal.SIGSTOP)
                try:
                    await asyncio.sleep(fault.lasts_s)
                finally:
                    for process in stopped:
                        process.send_signal(signal.SIGCONT)
                return
            case "delay":
                proxy.delay_s = fault.amount
            case "throttle":
                proxy.bytes_per_s = fault.amount
            case "cut":
                proxy.refuses = True
                proxy.cut()
            case "silence":
                proxy.silent = True
                proxy.fall_silent()
            case _:
                raise AssertionError(fault.kind)
        await asyncio.sleep(fault.lasts_s)
        proxy.well()

    async def _kill(self, fault: Fault) -> None:
        if fault.target == DATABASE:
            self._postgres.kill()
            await asyncio.sleep(fault.lasts_s)
            await asyncio.to_thread(self._postgres.start)
        else:
            service = self.services[fault.target]
            service.kill()
            await asyncio.sleep(fault.lasts_s)
            await service.start()

    def _processes(self, target: str) -> list[psutil.Process]:
        pid = self._postgres.pid if target == DATABASE else self.services[target].pid
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
