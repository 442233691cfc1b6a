"""``evenmesh train ium``: what it refuses, before anything is asked of a mesh."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from evenmesh.commands import main

AGENTS = """
[data]
tasks = "tasks.jsonl"
collection = "wiki"
[[agent]]
task_id = "qa"
model_id = "a"
model = "reader"
"""


@pytest.fixture
def agents(tmp_path: Path) -> Path:
    rows = [
        {"id": f"q{at}", "agent": "qa", "input": "Who?", "answers": ["Ann"], "split": split}
        for at, split in enumerate(("train", "dev"))
    ]
    (tmp_path / "tasks.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in rows))
    (tmp_path / "agents.toml").write_text(AGENTS)
    return tmp_path / "agents.toml"


def _run(agents: Path, *arguments: str) -> int:
    return main(["train", "ium", str(agents), *arguments])


def test_all_that_is_wrong_is_said_at_once(agents: Path, capsys: pytest.CaptureFixture[str]) -> None:
    agents.write_text(AGENTS.replace('model = "reader"', ""))
    reported = ["--baseline", "best", "--recipe", "nope", "--online", "8", "--no-personalisation"]
    assert _run(agents, "--output", str(agents.parent / "run"), *reported) == 2
    said = capsys.readouterr().err
    assert "--online: an agent's own parameters are personal; leave out --no-personalisation" in said
    assert "--baseline best: allowed: bm25, dense, per-agent, per-dataset, urag, oracle" in said
    assert "qa/a needs a model or a function, and not both" in said
    assert "at least 1 item" not in said
    assert "no recipe 'nope': give a TOML file or one of the presets fusion, laptop, paper" in said
    assert not (agents.parent / "run").exists()


def test_a_split_without_tasks_is_named(agents: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine = agents.with_name("mine.toml")
    mine.write_text('name = "mine"\nevaluation_split = "test"\n')
    assert _run(agents, "--output", str(agents.parent / "run"), "--recipe", str(mine)) == 2
    assert "qa/a has no task of the split test" in capsys.readouterr().err


def test_what_fusion_cannot_do_is_refused(agents: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(agents, "--output", str(agents.parent / "run"), "--recipe", "fusion", "--online", "8") == 2
    said = capsys.readouterr().err
    assert "--start: a new model ranks by chance; name one to fuse, such as bundled" in said
    assert "--online: ranks by the model alone, and the recipe learns fusion; leave one out" in said


def test_output_must_be_a_folder(agents: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(agents, "--output", str(agents)) == 2
    assert "is a file; --output names a folder" in capsys.readouterr().err


def test_a_model_to_begin_with_must_be_there(agents: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(agents, "--output", str(agents.parent / "run"), "--start", str(agents.parent / "no")) == 2
    said = capsys.readouterr().err
    assert "--start" in said
    assert str(agents.parent / "no") in said


def test_a_run_of_another_seed_is_refused(agents: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from evenmesh_training.ium import plan, recipe, session

    run = agents.parent / "run"
    with session.open_run(run, plan.load(agents), recipe.load("laptop"), begin="fresh", seed=0):
        pass
    assert _run(agents, "--output", str(run), "--seed", "1") == 2
    assert "seed was '0' and is '1' now; begin again in another folder" in capsys.readouterr().err


def test_whose_a_version_is_must_be_known(
    agents: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = str(agents.parent / "run")
    assert _run(agents, "--output", run, "--store", "--tenant", "../acme") == 2
    assert "--tenant" in capsys.readouterr().err
    monkeypatch.setenv("EVENMESH_API_KEY", "emk_of_acme")
    assert _run(agents, "--output", run, "--store") == 2
    assert "--tenant: must say whose the version is" in capsys.readouterr().err
