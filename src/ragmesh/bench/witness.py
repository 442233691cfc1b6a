"""Who computed while a step ran: the services, this client, everybody else; and what the services counted.

A load test can be believed only where it is known what its numbers measure: the mesh, the client, or a
neighbour on the same machine.
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
"""What held calls up: the mesh, the client that made them, others on the machine, or nothing."""

BUSY_CLIENT: Final = 0.75
"""Share of a core from which a client's event loop is no longer free when a call is due."""
LATE_SHARE: Final = 0.05
"""Share of a median latency that sending late may take before the client is to blame."""
BUSY_MACHINE: Final = 0.85
"""Share of all cores from which a machine is busy."""
NOISE: Final = 0.15
"""Share of all cores that others may take before numbers are theirs as well."""

_SCRAPE_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class Witnessed:
    """What was computed during a step; seconds of processor time.

    Attributes:
        elapsed_s: how long it was watched.
        cores: cores of this machine.
        machine_cpu_s: all that was computed on it.
        stolen_s: what a host took away from it.
        services_cpu_s: by service, of those that run on this machine.
        work: what services counted meanwhile, by ``service metric{labels}``: what was added to counters, and
            gauges as they stood at the end.
    """

    elapsed_s: float = 0.0
    cores: int = 0
    machine_cpu_s: float = 0.0
    stolen_s: float = 0.0
    services_cpu_s: Mapping[str, float] = field(default_factory=dict)
    work: Mapping[str, float] = field(default_factory=dict)

    @property
    def machine_share(self) -> float:
        """Share of this machine's cores that was busy, in [0, 1]; ``nan`` if it was not watched."""
        whole = self.elapsed_s * self.cores
        return self.machine_cpu_s / whole if whole else float("nan")

    def others_share(self, client_cpu_s: float) -> float:
        """Share of this machine's cores that was taken by neither the services nor the client."""
        whole = self.elapsed_s * self.cores
        ours = sum(self.services_cpu_s.values()) + client_cpu_s
        return max(0.0, self.machine_cpu_s + self.stolen_s - ours) / whole if whole else float("nan")


class Witness:
    """Watches the processes of services on this machine, and what services tell of themselves.

    Args:
        processes: process ids by service; those of a mesh elsewhere are not known.
        scrapes: addresses of Prometheus metrics by service.
    """

    def __init__(self, processes: Mapping[str, int], scrapes: Mapping[str, str] | None = None) -> None:
        self._processes = dict(processes)
        self._scrapes = dict(scrapes or {})
        self._began = 0.0
        self._machine = (0.0, 0.0)
        self._services: dict[str, float] = {}
        self._work: dict[str, float] = {}

    def begin(self, now: float) -> None:
        """A step begins; ``now`` in seconds of a monotonic clock."""
        self._work = self._scraped()
        self._services = self._computed()
        self._machine = _machine()
        self._began = now

    def end(self, now: float) -> Witnessed:
        """It has ended."""
        machine, stolen = _machine()
        services = self._computed()
        work = self._scraped()
        return Witnessed(
            elapsed_s=now - self._began,
            cores=os.cpu_count() or 1,
            machine_cpu_s=machine - self._machine[0],
            stolen_s=stolen - self._machine[1],
            services_cpu_s={
                name: max(0.0, value - self._services.get(name, 0.0)) for name, value in services.items()
            },
            work={
                name: value - self._work.get(name, 0.0) if _counts(name) else value
                for name, value in work.items()
            },
        )

    def _computed(self) -> dict[str, float]:
        found = {}
        for name, pid in self._processes.items():
            try:
                process = psutil.Process(pid)
                family = [process, *process.children(recursive=True)]
                found[name] = sum(sum(one.cpu_times()[:2]) for one in family)
            except psutil.Error:
                continue  # it is gone, or being started again
        return found

    def _scraped(self) -> dict[str, float]:
        found = {}
        for service, address in self._scrapes.items():
            for name, value in scraped(address).items():
                found[f"{service} {name}"] = value
        return found


def scraped(address: str) -> dict[str, float]:
    """What a service tells Prometheus now, without buckets; nothing where it does not answer."""
    try:
        with urllib.request.urlopen(address, timeout=_SCRAPE_S) as reply:  # noqa: S310 - http, as was checked
            lines = reply.read().decode("utf-8", errors="replace").splitlines()
    except (OSError, ValueError, http.client.HTTPException):  # ValueError of an address that is none
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
    witnessed: Witnessed,
    *,
    client_cpu_s: float,
    processes: int,
    elapsed_s: float,
    late_p99_ms: float,
    latency_p50_ms: float,
    kept_up: float,
    local: bool,
) -> tuple[Bottleneck, str]:
    """What held calls up during a step, and why that is said.

    Args:
        witnessed: who computed.
        client_cpu_s: what the client's processes computed together.
        processes: how many they are; the loop of each has one core at most.
        elapsed_s: how long they ran.
        late_p99_ms: how much later than they were due calls were sent.
        latency_p50_ms: latency of calls.
        kept_up: share of what was due that ended in time.
        local: whether services run on this machine.
    """
    share = client_cpu_s / (processes * elapsed_s) if elapsed_s else 0.0
    if share >= BUSY_CLIENT:
        return "client", f"each of its processes computed {share:.0%} of a core: take more (--processes)"
    if late_p99_ms > max(5.0, LATE_SHARE * latency_p50_ms) and share >= BUSY_CLIENT / 2:
        return "client", f"it sent calls up to {late_p99_ms:.0f} ms late (p99)"
    if (others := witnessed.others_share(client_cpu_s)) > NOISE:
        return "neighbours", f"others on this machine took {others:.0%} of its cores"
    busy = witnessed.machine_share
    if local and busy >= BUSY_MACHINE:
        services = witnessed.services_cpu_s
        first = max(services, key=lambda name: services[name], default="")
        part = services.get(first, 0.0) / max(sum(services.values()), 1e-9)
        return "server", f"{busy:.0%} of the cores were busy, {part:.0%} of the services' time in {first}"
    if kept_up < 0.9:
        return "server", "calls ended later than they came, and the client was free"
    if local:
        return "none", f"{busy:.0%} of the cores were busy, the client computed {share:.0%} of one"
    return "none", f"the client computed {share:.0%} of a core"


def _machine() -> tuple[float, float]:
    """Seconds computed by all of this machine's cores since it started, and seconds stolen from it."""
    times: Any = psutil.cpu_times()
    idle = times.idle + getattr(times, "iowait", 0.0)
    stolen = getattr(times, "steal", 0.0)
    guests = getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)  # in user and nice already
    return sum(times) - idle - stolen - guests, stolen


def _counts(name: str) -> bool:
    metric = name.partition("{")[0]
    return metric.endswith(("_total", "_count", "_sum"))


def cpu_name() -> str:
    """The processor's name, as far as this system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return "unknown"
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")
