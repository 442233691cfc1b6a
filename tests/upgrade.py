"""Upgrade a mesh of an earlier version, and let both versions call each other.

    python -m tests.upgrade REVISION

``REVISION`` is a commit of this repository, such as that of a release. It is installed in a folder of its own, which takes
minutes (``--earlier`` names the folder of an environment that has it already). The mesh of that version then gets passages,
asks, an agent and feedback, and three things are tried:

- this version opens that mesh's folder, and restores a backup that the earlier version took: nothing is missing, and it answers;
- this version's orchestrator calls the earlier services, as it does in the middle of a rollout;
- the earlier orchestrator calls this version's services; clients of both versions ask.

Fails if anything is missing or an ask fails. What is degraded is printed, and is no failure.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

_ROOT: Final = Path(__file__).parents[1]
_SERVICES: Final = ("retriever", "reranker", "generator", "evaluator")
_START_S: Final = 120.0
_QUESTION: Final = "When was the lighthouse of Arcen built?"
_OF_DEMO: Final = "How many stops does it take to bed in new disc brake pads?"
_PASSAGES: Final = {
    "arcen": "The lighthouse of Arcen was built in 1871 by Maria Tolen.",
    "harbour": "The harbour of Arcen froze in 1929 for eleven weeks.",
    "velm": "Maria Tolen also designed the bridge of Velm in 1880.",
}
_AGENT: Final = {"task_id": "qa-open", "model_id": "reader"}
_COLLECTION: Final = "upgrade"


class UpgradeError(Exception):
    """What was found missing, or failed."""


@dataclass(frozen=True)
class Version:
    """A version of evenmesh that is installed here.

    Attributes:
        name: as it is printed.
        programs: folder of its ``python`` and ``evenmesh``.
    """

    name: str
    programs: Path

    def run(self, *arguments: str | Path, home: Path) -> str:
        """Run its command on the mesh of a folder, and return what it prints.

        Raises:
            UpgradeError: the command failed.
        """
        done = subprocess.run(
            [self.programs / "evenmesh", *arguments],
            env=self.environment(home),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode:
            shown = " ".join(map(str, arguments))
            raise UpgradeError(f"{self.name}: evenmesh {shown} ended with {done.returncode}:\n{done.stdout}")
        return done.stdout

    def environment(self, home: Path, **settings: str) -> dict[str, str]:
        """Return the environment of its processes, without settings of the caller's own mesh."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("EVENMESH_")}
        path = f"{self.programs}{os.pathsep}{os.environ['PATH']}"
        return kept | {"EVENMESH_HOME": str(home), "HF_HUB_OFFLINE": "1", "PATH": path} | settings

    @contextlib.contextmanager
    def mesh(self, home: Path) -> Iterator[None]:
        """Keep its mesh of a folder running within the block, on ports of its own."""
        self.run("up", "--detach", "--port", "0", home=home)
        try:
            yield
        finally:
            self.run("down", home=home)

    def ask(self, target: str, home: Path, collection: str, question: str) -> list[dict[str, Any]]:
        """Ask an orchestrator with its client; return the events."""
        printed = self.run("ask", "--json", "--target", target, "-c", collection, question, home=home)
        return [json.loads(line) for line in printed.splitlines() if line.startswith("{")]


def install(revision: str, folder: Path) -> Version:
    """Install a revision of this repository in a folder."""
    source = folder / "source"
    source.mkdir(parents=True)
    archived = subprocess.run(["git", "-C", _ROOT, "archive", revision], stdout=subprocess.PIPE, check=True)
    subprocess.run(["tar", "-x", "-C", source], input=archived.stdout, check=True)
    ours = [
        line.removeprefix("-e ")
        for line in (source / "workspace.txt").read_text().splitlines()
        if line.startswith("-e ")
    ]
    python = folder / "venv" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
    pip = [str(python), "-m", "pip", "install", "-q", "-c", "constraints.txt"]
    subprocess.run([*pip, *(part for one in ours for part in ("-e", f"./{one}"))], cwd=source, check=True)
    return Version(revision, python.parent)


def fill(version: Version, home: Path) -> None:
    """Let a running mesh of the earlier version take passages, asks, an agent and feedback."""
    passages, feedback = home / "passages.jsonl", home / "feedback.jsonl"
    passages.write_text(_lines({"id": id_, "text": text} for id_, text in _PASSAGES.items()))
    feedback.write_text(
        _lines(
            {
                "query": _QUESTION,
                "passage_id": id_,
                "collection": _COLLECTION,
                "usefulness": float(id_ == "arcen"),
                "agent": _AGENT,
            }
            for id_ in _PASSAGES
        )
    )
    version.run("ingest", passages, "-c", _COLLECTION, home=home)
    version.run("ask", "-c", _COLLECTION, _QUESTION, home=home)
    version.run(
        "ask", "--alpha", "2", "--samples", "5", "--seed", "7", "-c", _COLLECTION, _QUESTION, home=home
    )
    version.run("agents", "register", *_AGENT.values(), home=home)
    version.run("feedback", "record", feedback, home=home)


def check(version: Version, home: Path) -> None:
    """Compare what a running mesh of this version has with what the earlier one was given.

    Raises:
        UpgradeError: anything is missing.
    """

    def listed(*arguments: str) -> list[dict[str, Any]]:
        return list(json.loads(version.run(*arguments, "--json", home=home)))

    found = {
        "passages": [one["num_passages"] for one in listed("collections") if one["name"] == _COLLECTION],
        "asks": [one["num_observations"] for one in listed("runs")],
        "feedback": [one["num_feedback"] for one in listed("agents", "list") if one["agent"] == _AGENT],
    }
    expected = {"passages": [len(_PASSAGES)], "asks": [2], "feedback": [len(_PASSAGES)]}
    if found != expected:
        raise UpgradeError(f"found {found} where the earlier version stored {expected}")
    answered(
        version.ask(addresses(version, home)["orchestrator"], home, _COLLECTION, _QUESTION), version.name
    )


def addresses(version: Version, home: Path) -> dict[str, str]:
    """Return where the services of a running mesh listen."""
    return dict(re.findall(r"^(\w+)\s+(127\.0\.0\.1:\d+)", version.run("status", home=home), re.MULTILINE))


@contextlib.contextmanager
def orchestrator(version: Version, services: dict[str, str], home: Path) -> Iterator[str]:
    """Run an orchestrator in front of services within the block; yield its address."""
    targets = {
        f"EVENMESH_ORCHESTRATOR_{name.upper()}_TARGET": f"dns:///{services[name]}" for name in _SERVICES
    }
    settings = {"EVENMESH_ORCHESTRATOR_PORT": "0", "EVENMESH_ORCHESTRATOR_METRICS_PORT": "0"}
    home.mkdir()
    log = home / "log"
    with log.open("w") as output:
        process = subprocess.Popen(
            [version.programs / "python", "-m", "evenmesh_orchestrator"],
            env=version.environment(home, **targets, **settings),
            stdout=output,
            stderr=output,
        )
    try:
        deadline = time.monotonic() + _START_S
        while not (serving := re.search(r'"serving", "address": "([^"]+)"', log.read_text())):
            if process.poll() is not None or time.monotonic() > deadline:
                raise UpgradeError(f"the orchestrator of {version.name} does not serve:\n{log.read_text()}")
            time.sleep(0.1)
        yield serving[1]
    finally:
        process.terminate()
        process.wait()


def mixed(front: Version, behind: Version, folder: Path) -> None:
    """Ask one version's orchestrator, which calls the other version's services, with clients of both.

    Raises:
        UpgradeError: an ask failed, or was not answered.
    """
    home = folder / f"{front.name}-before-{behind.name}"
    home.mkdir()
    with behind.mesh(home):
        services = addresses(behind, home)
        with orchestrator(front, services, folder / f"{home.name}-front") as target:
            for client in (front, behind):
                who = f"client {client.name}, orchestrator {front.name}, services {behind.name}"
                answered(client.ask(target, home, "demo", _OF_DEMO), who)


def answered(events: list[dict[str, Any]], who: str) -> None:
    """Print how an ask went.

    Raises:
        UpgradeError: it has no answer.
    """
    answers = [one["text"] for one in events if one["event"] == "answer"]
    if not answers:
        raise UpgradeError(f"{who}: no answer among {[one['event'] for one in events]}")
    degraded = [one["message"] for one in events if one["event"] == "degraded"]
    _say("; ".join([f"{who}: {answers[0]}", *degraded]))


def _lines(items: Iterator[dict[str, Any]]) -> str:
    return "".join(json.dumps(one) + "\n" for one in items)


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> int:
    """Try the upgrade, and return 0 if nothing is missing."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.upgrade", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("revision", help="the earlier version: a commit")
    parser.add_argument("--earlier", type=Path, help="environment that has it installed already")
    given = parser.parse_args()
    now = Version("now", Path(sys.executable).parent)
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        earlier = (
            Version(given.revision, given.earlier.absolute() / "bin")
            if given.earlier
            else install(given.revision, folder / "earlier")
        )
        home, backup, restored = folder / "home", folder / "backup", folder / "restored"
        home.mkdir()
        try:
            with earlier.mesh(home):
                fill(earlier, home)
                earlier.run("backup", backup, home=home)
            with now.mesh(home):
                check(now, home)
            _say(f"the folder of {earlier.name} is opened: nothing is missing")
            now.run("restore", backup, home=restored)
            with now.mesh(restored):
                check(now, restored)
            _say(f"the backup of {earlier.name} is restored: nothing is missing")
            mixed(now, earlier, folder)
            mixed(earlier, now, folder)
        except UpgradeError as error:
            sys.stderr.write(f"{error}\n")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
