"""The command line of a service's process."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from evenmesh_evaluator.settings import EvaluatorSettings
from evenmesh_kit.process import arguments
from evenmesh_kit.settings import variable
from tests.support.forked import ForkedModule


def test_the_help_names_each_setting_with_its_text(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        arguments.refuse("evenmesh_evaluator", EvaluatorSettings, arguments=["--help"])

    assert ended.value.code == 0
    lines = capsys.readouterr().out.splitlines()
    for field in EvaluatorSettings.model_fields:
        [at] = [
            at
            for at, line in enumerate(lines)
            if line.partition(" (default")[0].strip() == variable(EvaluatorSettings, field)
        ]
        assert lines[at + 1].strip(), field
    at = lines.index("  EVENMESH_EVALUATOR_PORT (default: 7074)")
    assert lines[at + 1].strip() == "Port to listen on, [0, 65535]; 0 lets the system choose."


@pytest.mark.parametrize("given", [["--port", "5"], ["serve"], ["--hel"]])
def test_other_arguments_are_refused(given: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        arguments.refuse("evenmesh_evaluator", EvaluatorSettings, arguments=given)

    assert ended.value.code == 2
    assert f"unrecognized arguments: {' '.join(given)}" in capsys.readouterr().err


def test_without_arguments_nothing_happens() -> None:
    arguments.refuse("evenmesh_evaluator", EvaluatorSettings, arguments=[])


@pytest.mark.parametrize(
    "module",
    [
        "evenmesh_orchestrator",
        "evenmesh_retriever",
        "evenmesh_reranker",
        "evenmesh_generator",
        "evenmesh_evaluator",
        "evenmesh_gateway",
        "evenmesh_training.online",
    ],
)
async def test_no_process_starts_with_arguments_that_it_does_not_take(module: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    environment = {**os.environ, "EVENMESH_HOME": str(tmp_path / "home")}
    process = await asyncio.to_thread(ForkedModule, module, environment, log, arguments=("--port", "5"))

    assert await asyncio.to_thread(process.wait, 120) == 2
    assert f"python -m {module}: error: unrecognized arguments: --port 5" in log.read_text()
    assert not (tmp_path / "home").exists()
