"""Measure who used the processors during a step: the services, the client, or others on the machine.

The latencies of a load test are the mesh's only if neither the client nor a neighbour was the bottleneck.
"""

import http.client
import os
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

import psutil

Bottleneck = Literal["server", "client", "neighbours", "none"]
"""What delayed calls: the mesh, the client, others on the machine, or nothing."""

BUSY_CLIENT: Final = 0.75
"""Share of a core from which a client's event loop is too busy to send calls on time."""
LATE_SHARE: Final = 0.05
"""Share of the median latency by which sending may be late before the client is the bottleneck."""
BUSY_MACHINE: Final = 0.85
"""Share of all cores from which the machine is saturated."""
BUSY_THREAD: Final = 0.9
"""Share of a step from which a thread that computes has no time left, whatever the other cores do."""
QUEUE: Final = 0.5
"""Calls that wait in a queue on average from which it delays them."""
NOISE: Final = 0.15
"""Share of all cores that others may use before they distort the measurement."""

_SCRAPE_S: Final = 2.0
_WAITS: Final = ("_queue_duration_seconds_sum", "_wait_duration_seconds_sum")
_Thread = tuple[str, int, int]  # service, process, number


@dataclass(frozen=True, slots=True)
class ResourceUsage:
    """Processor time used during a step, in seconds.

    Attributes:
        elapsed_s: duration of the measurement.
        cores: cores of this machine.
        machine_cpu_s: of all processes of the machine.
        stolen_s: taken by the host of a virtual machine.
        services_cpu_s: by service, of those on this machine.
        threads_cpu_s: of the busiest thread of each service, by ``service thread``.
        work: metrics of services by ``service metric{labels}``: increments of counters, and final values of
            gauges.
    """

    elapsed_s: float = 0.0
    cores: int = 0
    machine_cpu_s: float = 0.0
    stolen_s: float = 0.0
    services_cpu_s: Mapping[str, float] = field(default_factory=dict)
    threads_cpu_s: Mapping[str, float] = field(default_factory=dict)
    work: Mapping[str, float] = field(default_factory=dict)

    @property
    def machine_share(self) -> float:
        """Share of this machine's cores that was busy, in [0, 1]; ``nan`` if it was not measured."""
        whole = self.elapsed_s * self.cores
        return self.machine_cpu_s / whole if whole else float("nan")

    @property
    def busiest_thread(self) -> tuple[str, float]:
        """The thread that computed longest, and its share of the time, in [0, 1]; none: empty and 0."""
        name = max(self.threads_cpu_s, key=lambda one: self.threads_cpu_s[one], default="")
        return name, self.threads_cpu_s.get(name, 0.0) / self.elapsed_s if self.elapsed_s else 0.0

    @property
    def longest_queue(self) -> tuple[str, float]:
        """The queue in which most calls waited, and how many on average; none known: empty and 0.

        By Little's law that is the sum of their waits, which services count, over the time.
        """
        waits: dict[str, float] = {}
        for name, value in self.work.items():
            metric = name.partition("{")[0]
            if metric.endswith(_WAITS):
                waits[metric.removesuffix("_sum")] = waits.get(metric.removesuffix("_sum"), 0.0) + value
        name = max(waits, key=lambda one: waits[one], default="")
        return name, waits.get(name, 0.0) / self.elapsed_s if self.elapsed_s else 0.0

    def others_share(self, client_cpu_s: float) -> float:
        """Return the share of this machine's cores that neither the services nor the client used."""
        whole = self.elapsed_s * self.cores
        ours = sum(self.services_cpu_s.values()) + client_cpu_s
        return max(0.0, self.machine_cpu_s + self.stolen_s - ours) / whole if whole else float("nan")


class ResourceMonitor:
    """Measures the processes of services on this machine, and reads their metrics.

    Args:
        processes: process ids by service; empty for a mesh elsewhere.
        scrapes: addresses of Prometheus metrics by service.
    """

    def __init__(self, processes: Mapping[str, int], scrapes: Mapping[str, str] | None = None) -> None:
        self._processes = dict(processes)
        self._scrapes = dict(scrapes or {})
        self._began = 0.0
        self._machine = (0.0, 0.0)
        self._services: dict[str, float] = {}
        self._threads: dict[_Thread, float] = {}
        self._work: dict[str, float] = {}

    def begin(self, now: float) -> None:
        """Begin a step at ``now``, in seconds of a monotonic clock."""
        self._work = self._scraped()
        self._services, self._threads = self._computed()
        self._machine = _machine()
        self._began = now

    def end(self, now: float) -> ResourceUsage:
        """End the step and return what it used."""
        machine, stolen = _machine()
        services, threads = self._computed()
        work = self._scraped()
        return ResourceUsage(
            elapsed_s=now - self._began,
            cores=os.cpu_count() or 1,
            machine_cpu_s=machine - self._machine[0],
            stolen_s=stolen - self._machine[1],
            services_cpu_s={
                name: max(0.0, value - self._services.get(name, 0.0)) for name, value in services.items()
            },
            threads_cpu_s=self._busiest(threads),
            work={
                name: value - self._work.get(name, 0.0) if _counts(name) else value
                for name, value in work.items()
            },
        )

    def _computed(self) -> tuple[dict[str, float], dict[_Thread, float]]:
        """Return the processor time of services and of their threads so far. Seconds."""
        found: dict[str, float] = {}
        threads: dict[_Thread, float] = {}
        for name, pid in self._processes.items():
            try:
                process = psutil.Process(pid)
                family = [process, *process.children(recursive=True)]
                found[name] = sum(sum(one.cpu_times()[:2]) for one in family)
                threads |= {
                    (name, one.pid, thread.id): thread.user_time + thread.system_time
                    for one in family
                    for thread in one.threads()
                }
            except psutil.Error:
                continue  # it has ended, or is restarting
        return found, threads

    def _busiest(self, threads: Mapping[_Thread, float]) -> dict[str, float]:
        """Return what the busiest thread of each service has computed since the step began."""
        found: dict[str, tuple[float, _Thread]] = {}
        for one, value in threads.items():
            spent = value - self._threads.get(one, 0.0)
            if spent > found.get(one[0], (0.0, one))[0]:
                found[one[0]] = (spent, one)
        return {_named(one): spent for spent, one in found.values()}

    def _scraped(self) -> dict[str, float]:
        found = {}
        for service, address in self._scrapes.items():
            for name, value in scrape(address).items():
                found[f"{service} {name}"] = value
        return found


def scrape(address: str) -> dict[str, float]:
    """Return a service's Prometheus metrics without buckets; empty if it does not answer."""
    try:
        with urllib.request.urlopen(address, timeout=_SCRAPE_S) as reply:  # noqa: S310 - http, checked before
            lines = reply.read().decode("utf-8", errors="replace").splitlines()
    except (OSError, ValueError, http.client.HTTPException):  # ValueError: an invalid address
        return {}
    found = {}
    for line in lines:
        name, _, value = line.rpartition(" ")
        if name and not line.startswith("#") and "_bucket{" not in name and "_created" not in name:
            try:
                found[name] = float(value)
            except ValueError:
                continue
    return found


def bottleneck(
    usage: ResourceUsage,
    *,
    client_cpu_s: float,
    processes: int,
    elapsed_s: float,
    late_p99_ms: float,
    latency_p50_ms: float,
    kept_up: float,
    local: bool,
) -> tuple[Bottleneck, str]:
    """Return what delayed calls during a step, and the evidence.

    Args:
        usage: processor time of the step.
        client_cpu_s: processor time of all client processes.
        processes: number of client processes; each has one event loop and uses at most one core.
        elapsed_s: duration.
        late_p99_ms: delay of sending calls.
        latency_p50_ms: latency of calls.
        kept_up: share of due calls that ended in time.
        local: whether services run on this machine.
    """
    share = client_cpu_s / (processes * elapsed_s) if elapsed_s else 0.0
    if share >= BUSY_CLIENT:
        return "client", f"each of its processes used {share:.0%} of a core: use more (--processes)"
    if late_p99_ms > max(5.0, LATE_SHARE * latency_p50_ms) and share >= BUSY_CLIENT / 2:
        return "client", f"it sent calls up to {late_p99_ms:.0f} ms late (p99)"
    if (others := usage.others_share(client_cpu_s)) > NOISE:
        return "neighbours", f"others on this machine used {others:.0%} of its cores"
    busy, (thread, computed), (queue, waiting) = (
        usage.machine_share,
        usage.busiest_thread,
        usage.longest_queue,
    )
    waits = f"; {waiting:.1f} calls waited in {queue} on average" if waiting >= QUEUE else ""
    if local and busy >= BUSY_MACHINE:
        services = usage.services_cpu_s
        first = max(services, key=lambda name: services[name], default="")
        part = services.get(first, 0.0) / max(sum(services.values()), 1e-9)
        most = f", {computed:.0%} of one in the thread {thread}" if thread else ""
        return (
            "server",
            f"{busy:.0%} of the cores were busy, {part:.0%} of the services' time in {first}{most}{waits}",
        )
    if computed >= BUSY_THREAD:
        return (
            "server",
            f"the thread {thread} computed {computed:.0%} of the time, {busy:.0%} of the cores{waits}",
        )
    if kept_up < 0.9:
        return "server", f"calls ended more slowly than they arrived, and the client was not busy{waits}"
    if waits:
        return "server", waits.removeprefix("; ")
    if local:
        return "none", f"{busy:.0%} of the cores were busy, the client used {share:.0%} of one"
    return "none", f"the client used {share:.0%} of a core"


def _machine() -> tuple[float, float]:
    """Return busy and stolen processor seconds of this machine since it started."""
    times: Any = psutil.cpu_times()
    idle = times.idle + getattr(times, "iowait", 0.0)
    stolen = getattr(times, "steal", 0.0)
    guests = getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)  # in user and nice already
    return sum(times) - idle - stolen - guests, stolen


def _named(thread: _Thread) -> str:
    """Return the service and name of a thread; the main one of a process runs its event loop."""
    service, process, number = thread
    if number == process:
        return f"{service} event loop"
    try:
        name = (
            Path(f"/proc/{process}/task/{number}/comm").read_text(encoding="utf-8", errors="replace").strip()
        )
    except OSError:  # it has ended, or this is not Linux
        name = ""
    return f"{service} {name or number}"


def _counts(name: str) -> bool:
    metric = name.partition("{")[0]
    return metric.endswith(("_total", "_count", "_sum"))
