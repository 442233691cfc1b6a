"""Two readers that were trained differently, and what they answer."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from benchmarks.generation import BUNDLED, in_process
from evenmesh_generator.domain import Answer, GenerationRequest, Passage
from evenmesh_generator.ports import Cancellation, LanguageModel

READERS: Final = ("bundled", "first")
COMMIT: Final = "ddc02164d70df3e9b01a5b063fe14c7999eab12e"
"""Of the first reader: trained on SQuAD alone, before the bundled one."""

_FILES: Final = "services/generator/pointer/weights"
_NOW: Final = {"model_type": "evenmesh-pointer", "abstention_token_id": 2025, "abstention_bias": -30.0}
"""What its configuration lacks or has under an older name. It never learned to abstain, and so does not."""


@contextmanager
def reading(reader: str, home: Path) -> Iterator[LanguageModel]:
    """Yield a reader in this process, in float32, on one core.

    Args:
        reader: one of :data:`READERS`.
        home: where the first reader's files, and encoders converted for OpenVINO, are kept.

    Raises:
        FileNotFoundError: the first reader is not in this checkout's history.
    """
    path = None if reader == READERS[0] else _first(home / "first-reader")
    with in_process(BUNDLED, path, home=home, parallel=1, dtype="float32") as model:
        yield model


def answered(
    model: LanguageModel, question: str, contexts: Sequence[Sequence[str]], passages: Mapping[str, Passage]
) -> list[str]:
    """Return the answers to a question from each context.

    Raises:
        MeshError: the model does not answer.
    """
    requests = [GenerationRequest(question, tuple(passages[one] for one in context)) for context in contexts]

    async def together() -> list[Answer]:
        return await asyncio.gather(*(model.generate(one, Cancellation()) for one in requests))

    return [one.text for one in asyncio.run(together())]


def _first(folder: Path) -> Path:
    """Return the folder of the first reader, with its files from the repository's history."""
    if not (folder / "model.safetensors").is_file():
        folder.mkdir(parents=True, exist_ok=True)
        configuration = {**json.loads(_of_history("config.json")), **_NOW}
        (folder / "config.json").write_text(json.dumps(configuration, indent=1) + "\n", encoding="utf-8")
        (folder / "model.safetensors").write_bytes(_of_history("model.safetensors"))
    return folder


def _of_history(name: str) -> bytes:
    command = ["git", "show", f"{COMMIT}:{_FILES}/{name}"]
    done = subprocess.run(command, capture_output=True, check=False, cwd=Path(__file__).parent)
    if done.returncode:
        raise FileNotFoundError(
            f"the first reader is not in this checkout's history: {done.stderr.decode().strip()}"
        )
    return done.stdout
