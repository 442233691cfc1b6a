"""A real OpenAI-compatible server, ``transformers serve``, with models that the tests built."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from tests.support import ports
from tests.support.waiting import until_answers

_START_S: Final = 240.0
_STOP_S: Final = 30.0
_REVISION: Final = "0" * 40


class TransformersServer:
    """A process that serves models in float32 on the CPU; a context manager around its run.

    It lists the models of its cache of the hub, so the models are put there.

    Args:
        folder: where the cache and the log are.
        models: folder by name of the model, such as ``tests/llama``.

    Attributes:
        url: its base URL.
    """

    def __init__(self, folder: Path, models: Mapping[str, Path]) -> None:
        self._folder = folder
        self._log = folder / "serve.log"
        self._port = ports.reserve(self)
        self.url = f"http://127.0.0.1:{self._port}/v1"
        self._process: subprocess.Popen[bytes] | None = None
        for name, source in models.items():
            _put(folder / "hub" / f"models--{name.replace('/', '--')}", source)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start it, and wait until it lists its models."""
        environment = os.environ | {"HF_HOME": str(self._folder), "HF_HUB_OFFLINE": "1"}
        environment.pop("HF_HUB_CACHE", None)
        command = [
            *(sys.executable, "-m", "transformers.cli.transformers", "serve"),
            *("--host", "127.0.0.1", "--port", str(self._port), "--device", "cpu", "--dtype", "float32"),
        ]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        try:
            until_answers(self._process, f"{self.url}/models", self._log, _START_S)
        except AssertionError:
            self.stop()
            raise

    def kill(self) -> None:
        """Kill it."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def stop(self) -> None:
        """Stop it."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self.kill()

    def log(self) -> str:
        """What it said."""
        return self._log.read_text(errors="replace")


def _put(cached: Path, source: Path) -> None:
    """Put a model where the hub's cache has it: files by revision, links to their contents."""
    blobs, snapshot = cached / "blobs", cached / "snapshots" / _REVISION
    for folder in (blobs, snapshot, cached / "refs"):
        folder.mkdir(parents=True, exist_ok=True)
    (cached / "refs" / "main").write_text(_REVISION)
    for file in source.iterdir():
        shutil.copyfile(file, blobs / file.name)
        (snapshot / file.name).symlink_to(Path("../../blobs") / file.name)
