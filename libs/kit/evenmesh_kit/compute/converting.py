"""Convert a model in a process of its own, and keep the result.

Importing PyTorch and what it loads a model with takes seconds and hundreds of megabytes. A service that
computes with a converted model does without; what the conversion takes of memory ends with its process.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from evenmesh_kit.compute.conversions import Conversions
from evenmesh_kit.compute.cores import usable_cores
from evenmesh_kit.compute.cpu_engine import EngineError

_CONVERTED_BY: Final = ("openvino", "sentence-transformers", "tokenizers", "torch", "transformers")


def conversion(
    conversions: Conversions, module: str, source: Path, given: Mapping[str, Any], *, version: str
) -> Path:
    """Return the folder of a model's conversion; make it first if there is none.

    Args:
        conversions: keeps it.
        module: what ``python -m`` runs to convert; see :func:`convert`.
        source: folder of the model; another content of its files is another conversion.
        given: what the module reads beside ``source`` and the ``folder`` that it writes into; other values
            are another conversion.
        version: raise it when the same model is converted to something else than before.

    Raises:
        EngineError: it cannot be converted, or not be kept.
    """
    digest = hashlib.sha256(f"{module} {version} {json.dumps(given, sort_keys=True)}".encode())
    for name in _CONVERTED_BY:
        digest.update(f"{name} {_installed(name)}".encode())
    for path in sorted(one for one in source.rglob("*") if one.is_file()):
        with path.open("rb") as file:
            digest.update(path.relative_to(source).as_posix().encode())
            digest.update(hashlib.file_digest(file, "sha256").digest())
    try:
        return conversions.find(
            digest.hexdigest()[:32], partial(convert, module, {**given, "source": str(source)})
        )
    except OSError as error:
        raise EngineError(f"its conversion cannot be kept: {' '.join(str(error).split())[:300]}") from None


def _installed(name: str) -> str:
    """Return the version of a package; empty without it."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def convert(module: str, given: Mapping[str, Any], folder: Path) -> None:
    """Convert a model into an empty folder, in another process.

    Args:
        module: what ``python -m`` runs: it reads a JSON object from standard input; what it cannot convert
            ends it with another status than 0, and one line on standard output that says why.
        given: the object, beside ``folder``.
        folder: where it writes.

    Raises:
        EngineError: it cannot be converted.
    """
    done = subprocess.run(  # noqa: S603 - this Python, with a module of our own
        [sys.executable, "-P", "-m", module],
        input=json.dumps({**given, "folder": str(folder)}),
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": str(usable_cores())},
        check=False,
    )
    if done.returncode:
        said = (done.stdout.strip() or done.stderr.strip()).splitlines()
        raise EngineError(said[-1][:300] if said else f"its conversion ended with status {done.returncode}")
