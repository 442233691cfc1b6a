"""Write locks/: what each image installs from the package index, by version and hash.

    python -m tests.locks

`uv` resolves the requirements of the rooms in the Dockerfile for the images' platform, within constraints.txt. The
files name no index: pip takes each file from where it is set up to, and refuses one with another hash.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Literal

from packaging.requirements import Requirement

from tests.support.images import DOCKERFILE, IMAGES, INSTALL, PROJECTS, ROOT, Image

LOCKS: Final = ROOT / "locks"
GPU_EXTRAS: Final = dict([re.findall(r"sed s/([a-z-]+)/([a-z-]+)/\)", INSTALL)[0]])
"""Extras of the variant with CUDA in place of those for processors, as the Dockerfile changes them."""
REMOTE: Final = ("retriever", "reranker", "generator")
"""Images that have a variant whose models are on servers."""
LOCAL_EXTRAS: Final = frozenset(re.findall(r"sed -E 's/\(\^\|,\)\(([a-z0-9|]+)\)", INSTALL)[0].split("|"))
"""Extras that such a variant is without, as the Dockerfile has it."""
Variant = Literal["cpu", "cuda", "remote"]
BUILD: Final = ("hatchling>=1.27",)
"""What builds our distributions."""

_PYTHON: Final = "3.11"
_PLATFORM: Final = "x86_64-manylinux_2_28"


def extras_of(image: Image, variant: Variant = "cpu") -> list[str]:
    """Return the extras of a variant of an image."""
    if variant == "remote":
        return [one for one in image.extras if one not in LOCAL_EXTRAS]
    return [GPU_EXTRAS.get(one, one) if variant == "cuda" else one for one in image.extras]


def requirements(image: Image, variant: Variant = "cpu") -> list[str]:
    """Return the requirements of a variant of an image that are not ours."""
    found: set[str] = set()
    seen: set[tuple[str, str]] = set()
    left = [(image.distribution, extra) for extra in ("", *extras_of(image, variant))]
    while left:
        name, extra = one = left.pop()
        if one in seen:
            continue
        seen.add(one)
        project = PROJECTS[name]
        for text in project["optional-dependencies"][extra] if extra else project["dependencies"]:
            requirement = Requirement(text)
            if requirement.name in PROJECTS:
                left += [(requirement.name, wanted) for wanted in ("", *requirement.extras)]
            else:
                found.add(text)
    return sorted(found)


def resolved(wanted: list[str], *, cpu: bool) -> str:
    """Return the lock of some requirements: one line for each distribution."""
    with tempfile.TemporaryDirectory() as folder:
        given, lock = Path(folder, "requirements.in"), Path(folder, "pylock.toml")
        given.write_text("\n".join(wanted))
        # PyTorch's wheels for the CPU have an index of their own, and a version of their own (+cpu).
        index = ["--find-links", _cpu_wheels()] if cpu and any("torch" in one for one in wanted) else []
        subprocess.run(
            [
                *(sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--no-config"),
                *("--python-version", _PYTHON, "--python-platform", _PLATFORM, *index),
                *("--constraint", ROOT / "constraints.txt", "--format", "pylock.toml"),
                *("--output-file", lock, given),
            ],
            check=True,
        )
        packages: list[dict[str, Any]] = tomllib.loads(lock.read_text())["packages"]
    return "".join(f"{line}\n" for one in packages for line in _lines(one))


def _cpu_wheels() -> str:
    """Return where the wheels for the CPU are: a folder that pip is set up with, or PyTorch's index."""
    done = subprocess.run(
        [sys.executable, "-m", "pip", "config", "get", "global.find-links"], capture_output=True, text=True
    )
    folder = Path(done.stdout.strip() or "/nowhere")
    (index,) = re.findall(r"^ARG TORCH_INDEX=(\S+)$", DOCKERFILE, re.MULTILINE)
    return str(folder) if list(folder.glob("torch-*+cpu-*.whl")) else f"{index}/torch/"


def _lines(package: dict[str, Any]) -> Iterator[str]:
    files = package.get("wheels") or [package["sdist"]]
    hashes = sorted({one["hashes"]["sha256"] for one in files})
    marker = f" ; {package['marker']}" if "marker" in package else ""
    yield f"{package['name']}=={package['version']}{marker} \\"
    for place, one in enumerate(hashes):
        yield f"    --hash=sha256:{one}" + (" \\" if place < len(hashes) - 1 else "")


def main() -> int:
    """Write the locks."""
    LOCKS.mkdir(exist_ok=True)
    locks = {"build": resolved(list(BUILD), cpu=True)}
    for name, image in IMAGES.items():
        wanted = requirements(image)
        locks[f"{name}-cpu"] = resolved(wanted, cpu=True)
        if re.search(r"^(torch|nvidia)", locks[f"{name}-cpu"], re.MULTILINE):
            locks[f"{name}-cuda"] = resolved(requirements(image, "cuda"), cpu=False)
        if name in REMOTE:
            locks[f"{name}-remote"] = resolved(requirements(image, "remote"), cpu=True)
    for old in LOCKS.glob("*.txt"):
        old.unlink()
    for name, content in locks.items():
        (LOCKS / f"{name}.txt").write_text(content)
    sys.stdout.write(f"wrote {len(locks)} files into {LOCKS}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
