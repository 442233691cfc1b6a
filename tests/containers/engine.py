"""Build images with buildah and run them with podman, without a daemon and with a store of their own."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.support.images import ROOT

TOOLS: Final = {
    "buildah": "buildah",
    "podman": "podman",
    "crun": "crun",
    "runc": "runc",
    "mmdebstrap": "mmdebstrap",
    "unshare": "util-linux",
}
"""What is needed, and the Debian package that brings it."""
_MEMORY: Final = Path("/sys/fs/cgroup/memory")
_TRIED_MIB: Final = 64
_USER: Final = 10001
_KILLED: Final = 137
BASE_PACKAGES: Final = "python3,python3-venv,python-is-python3,ca-certificates"

# Beside Kubernetes' own probes nothing asks for it here, and its image is in a registry that may be out of reach.
_PROBE: Final = """#!/opt/venv/bin/python
import sys, grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
options = dict(word.lstrip("-").partition("=")[::2] for word in sys.argv[1:])
with grpc.insecure_channel(options["addr"]) as channel:
    request = health_pb2.HealthCheckRequest(service=options.get("service", ""))
    reply = health_pb2_grpc.HealthStub(channel).Check(request, timeout=5)
sys.exit(reply.status != health_pb2.HealthCheckResponse.SERVING)
"""


def missing() -> list[str]:
    """Return the Debian packages that are not installed."""
    return sorted({package for tool, package in TOOLS.items() if shutil.which(tool) is None})


class Engine:
    """Images and containers in one folder. Needs root, as containers of no other user are run here.

    Args:
        folder: where images and containers are kept; a second build finds the first one's base there.

    Attributes:
        limits_memory: whether this machine's control groups can hold a container to an amount of memory. Podman and
            runc of Debian do it by the controller `memory` of version 1; where a machine has another, containers run
            without control groups.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        self.folder.mkdir(parents=True, exist_ok=True)
        self._store = ["--root", str(self.folder / "store"), "--runroot", str(self.folder / "run")]
        self._environment = os.environ | {"BUILDAH_ISOLATION": "chroot"}
        self.limits_memory = _MEMORY.is_dir() and os.access(_MEMORY, os.W_OK)

    def unmount(self) -> None:
        """Unmount what buildah and podman leave mounted onto itself, so that the folder can be removed."""
        subprocess.run(
            ["umount", "--lazy", self.folder / "store" / "overlay"], capture_output=True, check=False
        )

    def buildah(self, *arguments: str) -> str:
        """Run buildah and return what it printed.

        Raises:
            CalledProcessError: it failed.
        """
        command = ["buildah", *self._store, *arguments]
        done = subprocess.run(
            command, cwd=ROOT, env=self._environment, stdout=subprocess.PIPE, text=True, check=True
        )
        return done.stdout.strip()

    def podman(self, *arguments: str) -> list[str]:
        """Return the command that runs podman: with control groups, or in a mount namespace of its own without."""
        runtime = "runc" if self.limits_memory else "crun"
        podman = ["podman", *self._store, "--cgroup-manager", "cgroupfs", "--runtime", runtime, *arguments]
        if self.limits_memory:
            return podman
        mounted = 'mount -t cgroup2 none /sys/fs/cgroup 2>/dev/null; exec "$@"'
        return ["unshare", "--mount", "sh", "-c", mounted, "podman", *podman]

    def make_base(self) -> str:
        """Return the name of an image of Debian with Python; make it where it is not there yet."""
        name = "localhost/evenmesh-base"
        if not self._has(name):
            archive = self.folder / "base.tar"
            release = _debian_release()
            command = [
                "mmdebstrap",
                "--mode=root",
                "--variant=minbase",
                f"--include={BASE_PACKAGES}",
                release,
            ]
            sources = sorted(Path("/etc/apt").glob("sources.list.d/*.sources"))
            subprocess.run([*command, str(archive), *map(str, sources)], check=True)
            self._commit(name, archive, "/")
            archive.unlink()
        return name

    def make_probe(self) -> str:
        """Return the name of an image with a program that stands in for `grpc-health-probe`."""
        name, folder = "localhost/evenmesh-probe", self.folder / "ko-app"
        folder.mkdir(exist_ok=True)
        program = folder / "grpc-health-probe"
        program.write_text(_PROBE)
        program.chmod(0o755)
        self._commit(name, folder, "/ko-app")
        return name

    def build(self, service: str, arguments: Mapping[str, str], name: str) -> None:
        """Build a service's image by the Dockerfile, with this machine's settings of pip."""
        given = [f"--build-arg={key}={value}" for key, value in {"SERVICE": service, **arguments}.items()]
        target = ["--target", "service", "--tag", name, "--format", "docker", "--isolation", "chroot"]
        self.buildah("bud", "--network", "host", "--quiet", *self._volumes(), *given, *target, ".")

    def is_held_to_memory(self, image: str) -> bool:
        """Return whether a container of an image with Python is ended where it takes more memory than it may.

        Raises:
            CalledProcessError: no container runs here.
        """
        limits = self._limits(_TRIED_MIB)
        for taken_mib in (0, 2 * _TRIED_MIB):
            take = ["python", "-c", f"b'1' * ({taken_mib} << 20)"]
            command = self.podman("run", "--rm", "--network", "host", *limits, image, *take)
            done = subprocess.run(command, cwd=self.folder, capture_output=True, check=not taken_mib)
        return done.returncode == _KILLED

    def size_mib(self, image: str) -> float:
        """Return the size of an image, its base included. MiB."""
        with self._mounted(image) as folder:
            found = subprocess.run(["du", "-sxb", folder], capture_output=True, text=True, check=True)
        return int(found.stdout.split()[0]) / 2**20

    @contextmanager
    def running(
        self, image: str, environment: Mapping[str, str], log: Path, pid_file: Path, memory_mib: float
    ) -> Iterator[subprocess.Popen[bytes]]:
        """Run an image as a pod of the manifests does: user 10001, root read-only, no capability.

        It is sent SIGTERM at the end of the block.

        Args:
            image: its name.
            environment: its variables.
            log: where its output goes.
            pid_file: where its process id is written.
            memory_mib: what it may have, where control groups can hold it to that. MiB.

        Raises:
            TimeoutExpired: it has not ended a minute later.
        """
        rights = [
            "--user",
            f"{_USER}:{_USER}",
            "--read-only",
            "--cap-drop",
            "ALL",
            "--security-opt",
            "no-new-privileges",
        ]
        # runc gives a temporary file system the mode of the folder below it, and root as its owner.
        home = Path(tempfile.mkdtemp(prefix="home-", dir=self.folder))
        shutil.chown(home, _USER, _USER)
        places = ["--tmpfs=/tmp:rw,size=1g,mode=1777", f"--volume={home}:/var/lib/evenmesh"]
        variables = [f"--env={name}={value}" for name, value in environment.items()]
        command = self.podman(
            "run",
            "--rm",
            "--no-healthcheck",  # it would ask systemd for a timer
            "--pidfile",
            str(pid_file.resolve()),
            "--network",
            "host",
            *self._limits(memory_mib),
            *rights,
            *places,
            *variables,
            image,
        )
        with log.open("ab") as output:
            # Where one is ended for its memory, a file `oom` is written to where podman was started.
            process = subprocess.Popen(command, cwd=self.folder, stdout=output, stderr=output)
        try:
            yield process
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait(60)
            shutil.rmtree(home, ignore_errors=True)

    def peak_mib(self, pid: int) -> float:
        """Return the most memory that the container of a process had. MiB.

        With control groups all of it counts, files in memory too; else what its first process had at once.
        """
        if self.limits_memory:
            lines = Path(f"/proc/{pid}/cgroup").read_text(encoding="utf-8").splitlines()
            path = next(line.split(":", 2)[2] for line in lines if line.split(":")[1] == "memory")
            return int((_MEMORY / path.lstrip("/") / "memory.max_usage_in_bytes").read_text()) / 2**20
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024

    def _limits(self, memory_mib: float) -> list[str]:
        memory = f"{memory_mib:.0f}m"
        groups = (
            ["--memory", memory, "--memory-swap", memory] if self.limits_memory else ["--cgroups=disabled"]
        )
        return [*groups, "--ulimit", "nofile=20000:20000", "--ulimit", "nproc=10000:10000"]

    @contextmanager
    def _mounted(self, image: str) -> Iterator[str]:
        container = self.buildah("from", "--pull-never", image)
        try:
            yield self.buildah("mount", container)
        finally:
            self.buildah("rm", container)

    def _has(self, name: str) -> bool:
        return name in self.buildah("images", "--format", "{{.Name}}", "--noheading").split()

    def _commit(self, name: str, source: Path, target: str) -> None:
        container = self.buildah("from", "scratch")
        try:
            self.buildah("add", "--quiet", container, str(source), target)
            self.buildah("commit", "--quiet", container, name)
        finally:
            self.buildah("rm", container)

    def _volumes(self) -> list[str]:
        """Return the options that give a build pip's settings of this machine, and what they name."""
        options: dict[str, str] = {}
        listed = subprocess.run(
            [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True
        )
        for line in listed.stdout.splitlines():
            name, _, value = line.partition("=")
            options[name.rpartition(".")[2]] = ast.literal_eval(value)
        settings = self.folder / "pip.conf"
        lines = [f"{name} = {' '.join(value.split())}\n" for name, value in options.items()]
        settings.write_text("[global]\n" + "".join(lines))
        words = [word for value in options.values() for word in value.split()]
        named = {Path(word) for word in words if word.startswith("/")}
        # An index in a folder refers to files beside it.
        named |= {Path(word.removeprefix("file://")).parent for word in words if word.startswith("file:///")}
        files = sorted(str(path) for path in named if path.exists())
        return [f"--volume={settings}:/etc/pip.conf:ro", *(f"--volume={path}:{path}:ro" for path in files)]


def _debian_release() -> str:
    text = Path("/etc/os-release").read_text(encoding="utf-8")
    return next(line.partition("=")[2] for line in text.splitlines() if line.startswith("VERSION_CODENAME="))
