"""A real infinity server, which serves embeddings and rerankers; it lives in a virtual environment of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from tests.support import ports
from tests.support.waiting import until_answers

PROGRAM: Final = "infinity_emb"
_START_S: Final = 240.0


class InfinityServer:
    """One process that serves one model on the CPU, in float32.

    Args:
        program: path of the program.
        folder: the model.
        name: name of the model at the server.
        log: file of what it says.
    """

    def __init__(self, program: str, folder: Path, name: str, log: Path) -> None:
        self.port = ports.reserve(self)
        self.url = f"http://127.0.0.1:{self.port}"
        self.name = name
        self._log = log
        # The packages of this process are of other versions.
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        environment |= {"HF_HUB_OFFLINE": "1", "INFINITY_ANONYMOUS_USAGE_STATS": "0", "DO_NOT_TRACK": "1"}
        options = {
            "--engine": "torch",
            "--device": "cpu",
            "--dtype": "float32",
            "--host": "127.0.0.1",
            "--port": str(self.port),
            "--model-id": str(folder),
            "--served-model-name": name,
        }
        flags = ["--no-bettertransformer", "--no-compile", "--no-model-warmup"]
        command = [program, "v2", *flags, *(part for option in options.items() for part in option)]
        with log.open("wb") as output:
            self._process = subprocess.Popen(command, env=environment, stdout=output, stderr=output)

    def wait(self) -> None:
        """Wait until it answers."""
        until_answers(self._process, f"{self.url}/models", self._log, _START_S)

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()
        self._process.wait()


@contextmanager
def serving(folder: Path, name: str, log: Path) -> Iterator[InfinityServer]:
    """Serve a model as long as the block runs; skip the test where the program is not there."""
    program = shutil.which(PROGRAM)
    if program is None:
        pytest.skip(
            f"{PROGRAM} is not on the PATH: pip install 'infinity-emb[server,torch]==0.0.77' 'click<8.2' in a virtual "
            "environment of its own, and append its bin folder to the PATH"
        )
    server = InfinityServer(program, folder, name, log)
    try:
        server.wait()
        yield server
    finally:
        server.kill()
