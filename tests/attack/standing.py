"""Two tenants on one real mesh: one attacks, the other asks, in quiet and under attack by turns."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import grpc
import httpx
import numpy as np
import psutil

from evenmesh import Addresses, AsyncClient, Degraded, Done, MeshError
from evenmesh.local_mesh import MeshState, read_running
from evenmesh.wire.channel import connect
from evenmesh.wire.credentials import Credential
from evenmesh.wire.security import ChannelSecurity
from evenmesh_kit.security import keys
from evenmesh_mesh import SERVICES, MeshSettings, stop
from evenmesh_mesh.services import GATEWAY
from evenmesh_studies import demo
from tests.attack.attacker import ROWS, asked_about, reused, secret
from tests.support.detached_mesh import launch_for_tests
from tests.support.methods import LOST_STATUS

_ROOT: Final = Path(__file__).resolve().parents[2]
_KEYS: Final = (
    ("ada", "ada", ("ask", "ingest")),
    ("mallory", "mallory", ("ask", "ingest", "feedback", "train")),
    ("mesh", "default", ("service",)),
)
_COLLECTION: Final = "demo"
_RUN: Final = "ada"
_ASKERS: Final = 2
PAUSE_S: Final = 1.0
"""Time between an answer and the next ask: Ada asks for less than her half of the mesh. Seconds."""
_QUIET: Final = 0.25
"""Time in quiet beside that under attack."""
_SETTLE_S: Final = 70.0
"""Time after an attack until the generator makes large pieces of work for one tenant again. Seconds."""
_ASK_S: Final = 120.0
_OBSERVED_S: Final = 300.0
_LEFT_S: Final = 60.0
"""Longest time after an attack until nothing is left of its uploads. Seconds."""
_QUESTIONS: Final = [one.question for one in demo.questions()[:20]]


@dataclass(frozen=True)
class Attacked:
    """A mesh of real services that knows its callers.

    Attributes:
        home: its home.
        state: as it was when it had started.
        keys: API keys by name.
    """

    home: Path
    state: MeshState
    keys: Mapping[str, str]


@contextmanager
def mesh_with_tenants(home: Path) -> Iterator[Attacked]:
    """Run a mesh with keys for Ada, who asks, and Mallory, who attacks."""
    known = {}
    for name, tenant, roles in _KEYS:
        known[name], digest = keys.new_key()
        entry = {"name": name, "sha256": digest, "roles": roles, "tenant": tenant}
        keys.add_entry(home / "keys.toml", keys.KeyEntry.read(entry))
    environment = {
        "EVENMESH_API_KEYS": str(home / "keys.toml"),
        "EVENMESH_API_KEY": known["mesh"],
        "EVENMESH_GATEWAY_DOCUMENTS_FOLDER": str(home / "uploads"),
    }
    services = (*SERVICES, GATEWAY)
    state = launch_for_tests(
        MeshSettings(home=home, port=0, start_s=600, environment=environment, services=services)
    )
    try:
        yield Attacked(home, state, known)
    finally:
        stop(home)


@dataclass
class Seen:
    """What Ada saw.

    Attributes:
        quiet_s: durations of asks without the attacker. Seconds.
        attacked_s: durations of asks under attack. Seconds.
        stages_s: durations of the stages of asks, by stage, in quiet and under attack. Seconds.
        done: ids of the asks that were answered.
        failed: other asks under attack, by status and reason.
        failed_quiet: other asks without the attacker.
        uploaded: documents that Ada uploaded under attack and then found.
        failed_uploads: her other uploads under attack, by what became of them.
        left: files of uploads, and processes that read them, that are there after the attack.
        dropped: asks whose observation was reported as lost.
        observed: ids of the observations that the evaluator has.
        outcomes: the attacker's calls by attack and status.
        guessed: secrets that the attacker found.
        restarts: services that are another process than before.
        peak_mib: most memory of each service at the end of a turn. MiB.
        cpu_s: processor time of each process, in quiet and under attack. Seconds.
        attack_s: time under attack. Seconds.
        observed_after_s: time after the last attack until all observations were there. Seconds.
    """

    quiet_s: list[float] = field(default_factory=list)
    attacked_s: list[float] = field(default_factory=list)
    stages_s: dict[str, tuple[list[float], list[float]]] = field(default_factory=dict)
    done: list[str] = field(default_factory=list)
    failed: Counter[str] = field(default_factory=Counter)
    failed_quiet: Counter[str] = field(default_factory=Counter)
    uploaded: int = 0
    failed_uploads: Counter[str] = field(default_factory=Counter)
    left: list[str] = field(default_factory=list)
    dropped: int = 0
    observed: set[str] = field(default_factory=set)
    outcomes: Counter[str] = field(default_factory=Counter)
    guessed: list[str] = field(default_factory=list)
    restarts: list[str] = field(default_factory=list)
    peak_mib: dict[str, float] = field(default_factory=dict)
    cpu_s: dict[str, list[float]] = field(default_factory=dict)
    attack_s: float = 0.0
    observed_after_s: float = 0.0

    @property
    def success(self) -> float:
        """Return the share of asks under attack that were answered."""
        return len(self.attacked_s) / max(1, len(self.attacked_s) + self.failed.total())

    @property
    def lost(self) -> set[str]:
        """Return the ids of answered asks whose observation is not there."""
        return set(self.done) - self.observed

    @property
    def internal(self) -> dict[str, int]:
        """Return the attacker's calls that ended in a fault of the mesh."""
        return {
            one: n
            for one, n in self.outcomes.items()
            if (": INTERNAL" in one or ": UNKNOWN" in one) and LOST_STATUS not in one
        }

    @property
    def p95_ratio(self) -> float:
        """Return the 95th percentile under attack beside that without."""
        return p95(self.attacked_s) / p95(self.quiet_s)

    def add_processor_time(self, process: str, seconds: float, *, under_attack: bool) -> None:
        """Add processor time of a process."""
        self.cpu_s.setdefault(process, [0.0, 0.0])[under_attack] += seconds


def p95(durations: list[float]) -> float:
    """Return the 95th percentile; NaN of nothing. Seconds."""
    return float(np.percentile(durations, 95)) if durations else float("nan")


async def endure(
    mesh: Attacked,
    attack_s: float,
    turns: int,
    *,
    rows: Collection[int] = ROWS,
    pause_s: float = PAUSE_S,
    repeated: bool = False,
) -> Seen:
    """Ask in quiet and under attack by turns, ``attack_s`` in all under attack, a quarter of that in quiet.

    Every question is new unless ``repeated``: then all but the first asks of each find their passages encoded.

    Args:
        mesh: the mesh.
        attack_s: time under attack. Seconds.
        turns: of quiet and attack.
        rows: the attacks to make.
        pause_s: time between an answer and the next ask. Seconds.
        repeated: whether the same twenty questions are asked again and again.
    """
    os.environ["EVENMESH_API_KEY"] = mesh.keys["ada"]
    try:
        seen = Seen(attack_s=attack_s)
        questions = itertools.cycle(_QUESTIONS) if repeated else _new_questions()
        async with AsyncClient(Addresses(**mesh.state.addresses), timeout=_ASK_S) as ada:
            await ada.ingest(demo.passages()[:60], _COLLECTION)
            await ada.until_embedded(_COLLECTION)
            for _ in _QUESTIONS:  # so that every ask that is timed finds all warm
                await _ask(ada, seen, next(questions), [])
            for turn in range(turns):
                if turn:  # quiet is what it was before anybody attacked
                    await asyncio.sleep(_SETTLE_S)
                quiet_s = _QUIET * attack_s / turns
                with _processor_time(mesh, seen, under_attack=False):
                    await _ask_for(ada, seen, questions, quiet_s, seen.quiet_s, seen.failed_quiet, pause_s)
                await _send_secret(mesh, turn)
                attack = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-m", "tests.attack.attacker", str(attack_s / turns), str(turn)),
                    *map(str, rows),
                    env={**os.environ, "EVENMESH_API_KEY": mesh.keys["mallory"]},
                    cwd=_ROOT,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    limit=2**24,
                )
                assert attack.stdin is not None
                assert attack.stdout is not None
                gateway = mesh.state.services[GATEWAY.name].address
                attack.stdin.write(json.dumps({**mesh.state.addresses, "gateway": gateway}).encode())
                attack.stdin.write_eof()
                assert await attack.stdout.readline() == b"ready\n"
                with _processor_time(mesh, seen, under_attack=True):
                    await asyncio.gather(
                        _ask_for(
                            ada, seen, questions, attack_s / turns, seen.attacked_s, seen.failed, pause_s
                        ),
                        _upload_for(mesh, ada, seen, attack_s / turns),
                    )
                said: dict[str, Any] = json.loads(await attack.stdout.readline())
                await attack.wait()
                seen.outcomes.update(said["outcomes"])
                seen.guessed += said["guessed"]
                seen.add_processor_time("attacker", said["cpu_s"], under_attack=True)
                seen.left += await _left_of_uploads(mesh)
                _note_memory(mesh, seen)
            await _collect_observations(ada, seen)
        now = read_running(mesh.home)
        assert now is not None, "the mesh is gone"
        seen.restarts = [
            name for name, one in now.services.items() if one.pid != mesh.state.services[name].pid
        ]
        return seen
    finally:
        del os.environ["EVENMESH_API_KEY"]


async def _ask_for(
    ada: AsyncClient,
    seen: Seen,
    questions: Iterator[str],
    seconds: float,
    took: list[float],
    failed: Counter[str],
    pause_s: float,
) -> None:
    until = time.perf_counter() + seconds

    async def asker() -> None:
        while True:
            try:
                await _ask(ada, seen, next(questions), took)
            except MeshError as error:
                failed[f"{error.code.name} {error.reason}"] += 1
            await asyncio.sleep(pause_s)
            if time.perf_counter() >= until:
                return

    await asyncio.gather(*(asker() for _ in range(_ASKERS)))


async def _upload_for(mesh: Attacked, ada: AsyncClient, seen: Seen, seconds: float) -> None:
    """Upload small documents, and count those whose passages are there after the reply."""
    url = f"http://{mesh.state.services[GATEWAY.name].address}"
    until = time.perf_counter() + seconds
    headers = {"authorization": f"Bearer {mesh.keys['ada']}"}
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=_ASK_S) as web:
        for number in itertools.count(seen.uploaded + seen.failed_uploads.total()):
            text = f"Boat {number} is rowed by {number + 2} women."
            files = [("file", (f"boats/{number}.md", text.encode()))]
            path = "/v1/collections/boats/documents"
            try:
                reply = await web.post(path, params={"wait": "false"}, files=files)
            except httpx.TransportError as error:
                seen.failed_uploads[type(error).__name__] += 1
            else:
                if reply.status_code == httpx.codes.OK:
                    found = [one.text async for one in ada.passages("boats")]
                    seen.uploaded += text in found
                    seen.failed_uploads["lost"] += text not in found
                else:
                    seen.failed_uploads[f"{reply.status_code} {reply.json().get('reason')}"] += 1
            if time.perf_counter() >= until:
                return
            await asyncio.sleep(PAUSE_S)


async def _left_of_uploads(mesh: Attacked) -> list[str]:
    """Return files of uploads and processes that read them, once there is none or too long after an attack."""
    gateway = psutil.Process(mesh.state.services[GATEWAY.name].pid)
    found: list[str] = []
    for _ in range(int(_LEFT_S)):
        files = (mesh.home / "uploads").glob("evenmesh-uploads-*/*")
        found = [str(one) for one in files if one.name != "lock"]
        found += [f"process {one.pid}" for one in gateway.children(recursive=True)]
        if not found:
            break
        await asyncio.sleep(1.0)
    return found


def _new_questions() -> Iterator[str]:
    """Yield questions without end, no two of them equal."""
    for number, question in enumerate(itertools.cycle(_QUESTIONS)):
        yield f"Question {number}: {question}"


async def _ask(ada: AsyncClient, seen: Seen, question: str, took: list[float]) -> None:
    began = time.perf_counter()
    async for event in ada.ask(question, depth=10, k=2, run_id=_RUN, timeout=_ASK_S):
        if isinstance(event, Degraded):
            seen.dropped += event.action == "observation_dropped"
        elif isinstance(event, Done):
            seen.done.append(event.ask_id)
            took.append(time.perf_counter() - began)
            for stage, ms in event.stage_ms.items():
                times = seen.stages_s.setdefault(stage, ([], []))
                if took is seen.quiet_s or took is seen.attacked_s:
                    times[took is seen.attacked_s].append(ms / 1000)


async def _send_secret(mesh: Attacked, turn: int) -> None:
    """Have Ada send a secret twice, so that it is kept for her."""
    security = ChannelSecurity(None, Credential(mesh.keys["ada"]))
    service = "evenmesh.generator.v1.GeneratorService"
    async with connect(mesh.state.addresses["generator"], service=service, security=security) as channel:
        last: bytes | None = None
        generate: Any = channel.unary_stream(f"/{service}/Generate")
        for _ in range(2):
            async for reply in generate(asked_about(secret(turn, turn)), timeout=_ASK_S):
                last = reply
        assert reused(last), "the generator keeps nothing: the guesses would show nothing"


@contextmanager
def _processor_time(mesh: Attacked, seen: Seen, *, under_attack: bool) -> Iterator[None]:
    """Add the processor time that each process takes during the block."""
    processes = {
        name: psutil.Process(one.pid)
        for name, one in mesh.state.services.items()
        if one.pid is not None and psutil.pid_exists(one.pid)
    } | {"asker": psutil.Process()}
    before = {name: sum(one.cpu_times()[:2]) for name, one in processes.items()}
    yield
    for name, one in processes.items():
        if one.is_running():
            seen.add_processor_time(name, sum(one.cpu_times()[:2]) - before[name], under_attack=under_attack)


def _note_memory(mesh: Attacked, seen: Seen) -> None:
    for name, one in mesh.state.services.items():
        if one.pid is not None and psutil.pid_exists(one.pid):
            mib = psutil.Process(one.pid).memory_info().rss / 2**20
            seen.peak_mib[name] = max(seen.peak_mib.get(name, 0.0), mib)


async def _collect_observations(ada: AsyncClient, seen: Seen) -> None:
    """Wait until every observation has arrived, or too long."""
    began = time.perf_counter()
    try:
        async with asyncio.timeout(_OBSERVED_S):
            while seen.lost or not seen.observed:
                try:
                    seen.observed = {one.observation_id async for one in ada.measurements(_RUN)}
                except MeshError as error:
                    if error.code not in (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.UNAVAILABLE):
                        raise
                await asyncio.sleep(0.5)
    except TimeoutError:
        pass  # what is missing shows
    seen.observed_after_s = time.perf_counter() - began
