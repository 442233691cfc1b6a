"""``python -m tests.containers``: build the images of all services, run the mesh from them, ask, and end it.

With ``--only`` single services are built, run alone until they are healthy, and ended. ``--remote`` takes the images without
models (``VARIANT=remote``) where there are any: then the retriever has BM25 alone, nothing ranks again, and a scripted server
of OpenAI's API stands in for the one that has the model. ``--compose`` has podman-compose run the images as compose.yaml says,
on the ports that stand there.
"""

from __future__ import annotations

import argparse
import asyncio
import atexit
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import grpc
import httpx
import yaml
from grpc_health.v1 import health_pb2, health_pb2_grpc

from evenmesh import Addresses, Client, MeshError
from evenmesh_studies import demo
from tests.containers import compose
from tests.containers.engine import Engine, missing
from tests.support import scripted_openai
from tests.support.manifests import K8S, SERVICES
from tests.support.scripted_http import serving

GATEWAY: Final = "gateway"
IMAGES: Final = (*SERVICES, GATEWAY)
"""What is built and run: the services, and the gateway before them."""
START_S: Final = 600.0
GRACE_S: Final = 20
REMOTE: Final = ("generator", "retriever", "reranker")
"""Those that have an image without models, too."""
MOST_MIB: Final[Mapping[str, float]] = {
    **{
        "orchestrator": 250,
        "evaluator": 290,
        GATEWAY: 250,
        "retriever": 1700,
        "reranker": 1400,
        "generator": 1500,
    },
    **{"generator-remote": 200, "retriever-remote": 700, "reranker-remote": 500},
}
"""Largest size over the base. MiB."""
CANNOT: Final = 3
"""Status where no image was made: for want of tools, of a network, or of a kernel that lets us."""
_PREFIX: Final = "localhost/evenmesh-"
_TORCH_INDEX: Final = "https://download.pytorch.org/whl/cpu"
_UNITS: Final = {"Mi": 1.0, "Gi": 1024.0}


@dataclass
class Row:
    """What was seen of one service.

    Attributes:
        image: the end of its image's name.
        over_base_mib: size of its image over the base. MiB.
        build_s: time that its build took. Seconds.
        peak_mib: most memory that its process had. MiB.
        limit_mib: memory that the manifests give it. MiB.
        end_s: from SIGTERM to its end. Seconds.
        status: with which it ended.
    """

    image: str
    over_base_mib: float = 0.0
    build_s: float = 0.0
    peak_mib: float = 0.0
    limit_mib: float = 0.0
    end_s: float = 0.0
    status: int | None = None

    def wrong(self, name: str) -> list[str]:
        """Return what is not as it should be."""
        found = []
        if self.over_base_mib > (most := MOST_MIB[self.image]):
            found.append(f"{self.image}: {self.over_base_mib:.0f} MiB over the base, at most {most:.0f}")
        if self.peak_mib > self.limit_mib:
            found.append(f"{name}: {self.peak_mib:.0f} MiB of memory, its limit is {self.limit_mib:.0f}")
        if self.status != 0 or self.end_s > GRACE_S + 10:
            found.append(f"{name}: ended with status {self.status} after {self.end_s:.0f} s")
        return found


def main() -> int:
    """Return 0 if all images are built, and the mesh answers and ends as it should."""
    parser = argparse.ArgumentParser(prog="python -m tests.containers", description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("build/containers"), help="where images are kept")
    parser.add_argument("--base", help="image with Python to begin from; default: one of Debian, made here")
    parser.add_argument(
        "--torch-index",
        help="where PyTorch comes from; default: the Dockerfile's, or pip's where that is away",
    )
    parser.add_argument("--reuse", action="store_true", help="run the images that a run before has built")
    parser.add_argument("--remote", action="store_true", help="images without models, where there are any")
    parser.add_argument("--compose", action="store_true", help="run them by compose.yaml")
    parser.add_argument("--only", nargs="+", choices=IMAGES, help="build these alone, and run each by itself")
    given = parser.parse_args()
    if packages := missing():
        sys.stderr.write(f"install first: apt-get install {' '.join(packages)}\n")
        return CANNOT
    if given.compose and (given.only or given.remote):
        parser.error("--compose runs all services, with their models")
    if given.compose and (tools := compose.missing()):
        sys.stderr.write(f"--compose needs {', '.join(tools)}; see docs/operate/containers.md\n")
        return CANNOT
    engine = Engine(given.folder)
    atexit.register(engine.unmount)
    rows = {
        name: Row(f"{name}-remote" if given.remote and name in REMOTE else name)
        for name in given.only or IMAGES
    }
    try:
        base, probe = given.base or engine.make_base(), engine.make_probe()
        held = engine.is_held_to_memory(base)
    except subprocess.CalledProcessError as error:
        sys.stderr.write(f"this machine makes or runs no containers: {error}\n")
        return CANNOT
    _say(
        "Containers are held to their memory by control groups."
        if held
        else "Containers are NOT held to their memory: this machine has no control group `memory` of version 1 to write to."
    )
    if given.compose and not held:
        sys.stderr.write("--compose needs control groups that hold containers to their memory\n")
        return CANNOT
    arguments = {
        "BASE": base,
        "HEALTH_PROBE": probe,
        "TORCH_INDEX": _torch_index() if given.torch_index is None else given.torch_index,
    }
    base_mib = engine.size_mib(base)
    for name, row in rows.items():
        began = time.monotonic()
        if not given.reuse:
            variant = {"VARIANT": "remote"} if row.image.endswith("-remote") else {}
            try:
                engine.build(name, arguments | variant, _PREFIX + row.image)
            except subprocess.CalledProcessError as error:
                sys.stderr.write(f"{row.image} was not built, or what it installs did not come: {error}\n")
                return CANNOT
        row.build_s = time.monotonic() - began
        row.over_base_mib = engine.size_mib(_PREFIX + row.image) - base_mib
        _say(f"{row.image}: {row.over_base_mib:.0f} MiB over the base, built in {row.build_s:.0f} s")
    run = _run_each if given.only else _run_composed if given.compose else _run
    answer = asyncio.run(_beside_models(run, engine, rows, given.folder, remote=given.remote))
    _say(report(rows, base_mib, answer))
    wrong = [one for name, row in rows.items() for one in row.wrong(name)]
    for one in wrong:
        _say(f"WRONG {one}")
    return 1 if wrong else 0


def report(rows: Mapping[str, Row], base_mib: float, answer: str) -> str:
    """Return a table in Markdown."""
    lines = [
        f"The base has {base_mib:.0f} MiB." + (f" The mesh answered {answer!r}." if answer else ""),
        "",
        "| image | over the base, MiB | peak of memory, MiB | its limit, MiB | end after SIGTERM, s |",
        "|---|---|---|---|---|",
        *(
            f"| {row.image} | {row.over_base_mib:.0f} | {row.peak_mib:.0f} | {row.limit_mib:.0f} | {row.end_s:.1f} |"
            for row in rows.values()
        ),
    ]
    return "\n".join(lines)


_Also = Mapping[str, Mapping[str, str]]
"""Settings of services beside those of the manifests."""


async def _beside_models(
    run: Callable[[Engine, Mapping[str, Row], Path, _Also], str],
    engine: Engine,
    rows: Mapping[str, Row],
    folder: Path,
    *,
    remote: bool,
) -> str:
    """Run containers, where images have no models beside a server that stands in for those; return the answer."""
    if not remote:
        return await asyncio.to_thread(run, engine, rows, folder, {})
    async with serving(scripted_openai.made_up()) as server:
        also = {
            "retriever": {"ENCODER": "", "DEFAULT_RETRIEVER": "bm25"},
            "reranker": {"CROSS_ENCODER": "", "DEFAULT_RERANKER": "none"},
            "generator": {
                "ENGINE": "openai",
                "REMOTE_URLS": server.url,
                "REMOTE_PROXIES": "false",
                "MODELS": scripted_openai.NAME,
            },
        }
        return await asyncio.to_thread(run, engine, rows, folder, also)


def _run_each(engine: Engine, rows: Mapping[str, Row], folder: Path, also: _Also) -> str:
    """Run one service after the other until it lives, and end it; return no answer."""
    (port,) = _free_ports(1)
    for name, row in rows.items():
        environment = _environment(name, dict.fromkeys(IMAGES, port), also)
        with _started(engine, name, row, folder, environment) as process:
            _until_live(name, port, process, folder)
            _end({name: process}, {name: row}, engine, folder)
    return ""


def _run(engine: Engine, rows: Mapping[str, Row], folder: Path, also: _Also) -> str:
    """Run the mesh from its images, ingest, ask, end it; return the answer."""
    ports = dict(zip(IMAGES, _free_ports(len(IMAGES)), strict=True))
    running: dict[str, subprocess.Popen[bytes]] = {}
    with ExitStack() as stack:
        for name, row in rows.items():
            container = _started(engine, name, row, folder, _environment(name, ports, also))
            running[name] = stack.enter_context(container)

        def check() -> None:
            for name, process in running.items():
                _still_runs(name, process, folder)

        answer = _ask(ports, check)
        _end(running, rows, engine, folder)
    return answer


def _run_composed(engine: Engine, rows: Mapping[str, Row], folder: Path, also: _Also) -> str:
    """Run the mesh by compose.yaml, ingest, ask, end it; return the answer."""
    mesh = compose.Composed(engine, folder)

    def check() -> None:
        for name in rows:
            if not mesh.runs(name):
                raise RuntimeError(f"{name} ended:\n{mesh.log(name)[-2000:]}")

    with mesh.running({name: _PREFIX + row.image for name, row in rows.items()}):
        answer = _ask(compose.ports(), check)
        for name, row in rows.items():
            row.peak_mib, row.limit_mib = engine.peak_mib(mesh.pid(name)), _limit_mib(name)
        for name, row in rows.items():
            began = time.monotonic()
            row.status = mesh.stop(name)
            row.end_s = time.monotonic() - began
    return answer


def _ask(ports: Mapping[str, int], check: Callable[[], None]) -> str:
    """Ingest the demo's passages and ask one of its questions, over gRPC and HTTP; return the answer.

    Args:
        ports: of each service and of the gateway on this machine.
        check: raises where one of them has ended.
    """
    addresses = Addresses(**{name: f"127.0.0.1:{ports[name]}" for name in SERVICES})
    with Client(addresses, timeout=120) as client:
        _until_serving(client, check)
        passages = demo.passages()
        client.ingest(passages, "demo")
        question = demo.questions()[0]
        result = client.answer(question.question, collection="demo", run_id="containers", run_report=True)
        known = {one.id for one in passages}
        if result.retrieved is None or not {one.id for one in result.retrieved.passages} <= known:
            raise RuntimeError("what was found is not what was ingested")
        over_http = _asked_over_http(ports[GATEWAY], question.question, check)
        if over_http != result.text:
            raise RuntimeError(f"over HTTP the mesh answers {over_http!r}, over gRPC {result.text!r}")
        while not [run for run in client.runs() if run.run_id == "containers"]:
            time.sleep(0.2)
    return result.text


def _started(
    engine: Engine, name: str, row: Row, folder: Path, environment: Mapping[str, str]
) -> AbstractContextManager[subprocess.Popen[bytes]]:
    log = folder / f"{name}.log"
    log.unlink(missing_ok=True)
    row.limit_mib = _limit_mib(name)
    image, pid_file = _PREFIX + row.image, folder / f"{name}.pid"
    return engine.running(image, environment, log, pid_file, row.limit_mib)


def _end(
    running: Mapping[str, subprocess.Popen[bytes]], rows: Mapping[str, Row], engine: Engine, folder: Path
) -> None:
    """Note what each had, and end each."""
    for name, row in rows.items():
        row.peak_mib = engine.peak_mib(int((folder / f"{name}.pid").read_text()))
    for name, process in running.items():
        began = time.monotonic()
        process.terminate()
        rows[name].status = process.wait(60)
        rows[name].end_s = time.monotonic() - began


def _until_live(name: str, port: int, process: subprocess.Popen[bytes], folder: Path) -> None:
    """Return once a service that has no others answers that it lives."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        _still_runs(name, process, folder)
        try:
            if name == GATEWAY:
                httpx.get(f"http://127.0.0.1:{port}/livez").raise_for_status()
                return
            with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
                request = health_pb2.HealthCheckRequest(service="live")
                reply = health_pb2_grpc.HealthStub(channel).Check(request, timeout=5)
            if reply.status == health_pb2.HealthCheckResponse.SERVING:
                return
        except (httpx.HTTPError, grpc.RpcError):
            pass
        time.sleep(0.5)
    raise RuntimeError(f"{name} does not live after {START_S:.0f} s")


def _still_runs(name: str, process: subprocess.Popen[bytes], folder: Path) -> None:
    if process.poll() is not None:
        log = (folder / f"{name}.log").read_text(encoding="utf-8")
        raise RuntimeError(f"{name} ended with status {process.returncode}:\n{log[-2000:]}")


def _asked_over_http(port: int, question: str, check: Callable[[], None]) -> str:
    """Return the answer of the gateway in the form of OpenAI's API, once it is ready."""
    url, deadline = f"http://127.0.0.1:{port}", time.monotonic() + START_S
    while time.monotonic() < deadline:
        check()
        try:
            httpx.get(f"{url}/readyz").raise_for_status()
            break
        except httpx.HTTPError:
            time.sleep(0.5)
    body = {"model": "evenmesh/demo", "messages": [{"role": "user", "content": question}]}
    reply = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=120).raise_for_status()
    text: str = reply.json()["choices"][0]["message"]["content"]
    return text


def _manifests(name: str) -> Path:
    return K8S / "components" / "http" if name == GATEWAY else K8S / "base"


def _environment(name: str, ports: Mapping[str, int], also: _Also) -> dict[str, str]:
    """Return the variables of the manifests, with the addresses of this machine and other settings."""
    lines = [
        line
        for file in (K8S / "base" / "evenmesh.env", _manifests(name) / f"{name}.env")
        for line in file.read_text(encoding="utf-8").splitlines()
        if line and not line.startswith("#")
    ]
    prefix = f"EVENMESH_{name.upper()}_"
    variables = dict(line.split("=", 1) for line in lines)
    for key in [one for one in variables if one.endswith("_TARGET")]:
        target = key.removeprefix(prefix).removesuffix("_TARGET").lower()
        variables[key] = f"dns:///127.0.0.1:{ports[target]}"
    here = {"HOST": "127.0.0.1", "PORT": str(ports[name]), "METRICS_PORT": "0", "GRACE_S": str(GRACE_S)}
    here["HEALTH_PORT"] = str(_free_ports(1)[0])
    return variables | {prefix + key: value for key, value in {**here, **also.get(name, {})}.items()}


def _until_serving(client: Client, check: Callable[[], None]) -> None:
    deadline = time.monotonic() + START_S
    while True:
        check()
        try:
            if {one.health for one in client.status()} == {"serving"}:
                return
        except MeshError:
            pass
        if time.monotonic() > deadline:
            raise RuntimeError(f"the mesh does not serve after {START_S:.0f} s")
        time.sleep(0.5)


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        found = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in found:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in found]


def _limit_mib(name: str) -> float:
    documents = yaml.safe_load_all((_manifests(name) / f"{name}.yaml").read_text(encoding="utf-8"))
    workload = next(one for one in documents if one["kind"] in ("Deployment", "StatefulSet"))
    memory = workload["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]["memory"]
    return float(memory[:-2]) * _UNITS[memory[-2:]]


def _torch_index() -> str:
    host = _TORCH_INDEX.split("/")[2]
    try:
        socket.create_connection((host, 443), timeout=5).close()
    except OSError:
        return ""
    return _TORCH_INDEX


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
