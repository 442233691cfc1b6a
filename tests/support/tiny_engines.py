"""Engines of the tiny models, and how tests talk to an engine."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from evenmesh_generator.domain import Answer, GenerationRequest
from evenmesh_generator.ports import Cancellation
from evenmesh_generator.prompts import TemplateLibrary
from evenmesh_generator.runtime.engine import LanguageEngine
from evenmesh_generator.runtime.loading import load
from evenmesh_generator.runtime.options import EngineOptions
from evenmesh_generator.runtime.pointer_engines import pointer_engine
from evenmesh_generator.runtime.tasks import Outcome
from evenmesh_generator.runtime.transformers_engines import transformers_engine
from evenmesh_kit.compute.placement import Placement
from tests.support import tiny_models

CPU = Placement(torch.device("cpu"), torch.float32)
TEMPLATES = TemplateLibrary.bundled()


def transformers(folder: Path, **options: Any) -> LanguageEngine:
    """The engine of the transformers model in ``folder``, float32 on the CPU, called `tiny`."""
    return transformers_engine("tiny", "v1", *load(folder, CPU), TEMPLATES, EngineOptions(**options))


def pointer(**options: Any) -> LanguageEngine:
    """The engine of the tiny pointer model."""
    reader = tiny_models.pointer()
    return pointer_engine("tiny", reader.model, reader.tokenizer, CPU, EngineOptions(**options))


class Ear:
    """Records what becomes of a request."""

    def __init__(self, on_delta: Callable[[str], None] = lambda _: None) -> None:
        self.deltas: list[str] = []
        self.ends: list[Outcome] = []
        self._hook = on_delta
        self._over = threading.Event()

    def on_delta(self, text: str) -> None:
        """More text."""
        assert not self.ends, "the end is the last call"
        self.deltas.append(text)
        self._hook(text)

    def on_end(self, outcome: Outcome) -> None:
        """The end."""
        self.ends.append(outcome)
        self._over.set()

    def outcome(self) -> Outcome:
        """Waits for the end."""
        assert self._over.wait(120), "the engine never ended the request"
        (outcome,) = self.ends
        return outcome


def submit(engine: LanguageEngine, request: GenerationRequest, cancel: Cancellation | None = None) -> Ear:
    """Asks, and does not wait."""
    ear = Ear()
    engine.submit(request, cancel or Cancellation(), ear)
    return ear


def write(
    engine: LanguageEngine, request: GenerationRequest, cancel: Cancellation | None = None
) -> tuple[Answer, list[str]]:
    """The answer and its deltas; raises what the engine ends with."""
    ear = submit(engine, request, cancel)
    outcome = ear.outcome()
    if isinstance(outcome, Exception):
        raise outcome
    return outcome, ear.deltas
