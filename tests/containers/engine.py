"""Build images with buildah and run them with podman, without a daemon and with a store of their own."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.support.images import ROOT

TOOLS: Final = {
    "buildah": "buildah",
    "podman": "podman",
    "crun": "crun",
    "mmdebstrap": "mmdebstrap",
    "unshare": "util-linux",
}
"""What is needed, and the Debian package that brings it."""
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
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        self.folder.mkdir(parents=True, exist_ok=True)
        self._store = ["--root", str(self.folder / "store"), "--runroot", str(self.folder / "run")]
        self._environment = os.environ | {"BUILDAH_ISOLATION": "chroot"}

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
        """Return the command that runs podman in a mount namespace of its own, with its control groups."""
        podman = ["podman", *self._store, "--cgroup-manager", "cgroupfs", "--runtime", "crun", *arguments]
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

    def build(self, service: str, arguments: Mapping[str, str]) -> str:
        """Build a service's image by the Dockerfile and return its name; what pip is told here holds there."""
        name = f"localhost/evenmesh-{service}"
        given = [f"--build-arg={key}={value}" for key, value in {"SERVICE": service, **arguments}.items()]
        target = ["--target", "service", "--tag", name, "--format", "docker", "--isolation", "chroot"]
        self.buildah("bud", "--network", "host", "--quiet", *self._volumes(), *given, *target, ".")
        return name

    def size_mib(self, image: str) -> float:
        """Return the size of an image, its base included. MiB."""
        with self._mounted(image) as folder:
            found = subprocess.run(["du", "-sxb", folder], capture_output=True, text=True, check=True)
        return int(found.stdout.split()[0]) / 2**20

    @contextmanager
    def running(
        self, image: str, environment: Mapping[str, str], log: Path, pid_file: Path
    ) -> Iterator[subprocess.Popen[bytes]]:
        """Run an image as a pod of the manifests does: user 10001, root read-only, no capability.

        It is sent SIGTERM at the end of the block.

        Raises:
            TimeoutExpired: it has not ended a minute later.
        """
        limits = ["--cgroups=disabled", "--ulimit", "nofile=20000:20000", "--ulimit", "nproc=10000:10000"]
        rights = [
            "--user",
            "10001:10001",
            "--read-only",
            "--cap-drop",
            "ALL",
            "--security-opt",
            "no-new-privileges",
        ]
        scratch = [f"--tmpfs={path}:rw,size=1g,mode=1777" for path in ("/tmp", "/var/lib/evenmesh")]  # noqa: S108
        variables = [f"--env={name}={value}" for name, value in environment.items()]
        command = self.podman(
            "run",
            "--rm",
            "--pidfile",
            str(pid_file.resolve()),
            "--network",
            "host",
            *limits,
            *rights,
            *scratch,
            *variables,
            image,
        )
        with log.open("ab") as output:
            process = subprocess.Popen(command, stdout=output, stderr=output)
        try:
            yield process
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait(60)

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
