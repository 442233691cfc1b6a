"""``evenmesh eval agents`` and ``evenmesh train agent``: what they write, print and refuse."""

import csv
from pathlib import Path

import pytest

from evenmesh.commands import main
from evenmesh_lab.files.agent_runs import AgentRunRecord, write_agent_runs

Output = pytest.CaptureFixture[str]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A folder of a run: two agents that asked the same, two systems, two rounds."""
    folder = tmp_path / "run"
    folder.mkdir()
    write_agent_runs(
        [
            AgentRunRecord(
                task_id="qa",
                model_id=model,
                query_id=f"q{number}",
                system=system,
                ranking=["a", "b"] if model == "fid" else ["b", "a"],
                utility=float(number % 4 < gain),
                iteration=iteration,
                reranker_version="v1" if iteration else None,
            )
            for model in ("fid", "in-prompt")
            for system, iteration, gain in (("bm25", None, 1), ("offline-ium", 0, 1), ("offline-ium", 1, 3))
            for number in range(12)
        ],
        folder / "runs.jsonl",
    )
    return folder


def test_a_report_of_a_run(run: Path, tmp_path: Path, capsys: Output) -> None:
    out = tmp_path / "new" / "report"
    assert main(["eval", "agents", str(run), "-o", str(out), "--resamples", "200"]) == 0
    shown, _ = capsys.readouterr()
    assert shown.startswith("What each way of ranking is worth to each agent")
    # three of four queries instead of one
    assert "offline-ium − bm25: +0.5000" in shown
    assert {path.name for path in out.iterdir()} == {
        "agents.csv", "agents-systems.csv", "agents-significance.csv", "agents-comparisons.csv",
        "agents-rounds.csv", "agents-agreement.csv", "agents.png", "rounds.png", "tau.png", "jaccard.png",
        "report.md", "report.html",
    }  # fmt: skip
    with (out / "agents.csv").open(newline="", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    assert rows[1] == {"agent": "qa/fid", "query_id": "q1", "bm25": "0.0", "offline_ium": "1.0"}
    assert len(rows) == 2 * 12
    markdown = (out / "report.md").read_text(encoding="utf-8")
    assert "N = 12 queries, 24 answers of 2 agents to each system" in markdown
    assert "![" in markdown
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "reranker v1" in page
    assert page.count("<svg") == 4


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["nothing.jsonl"], 1, "nothing.jsonl"),
        (["."], 1, "holds no runs.jsonl"),
        (["run/runs.jsonl", "--batch-size", "7"], 2, "batch_size"),
        (["run", "--level", "2"], 2, "--level is 2"),
    ],
)
def test_what_cannot_be_studied(
    run: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch, arguments: list[str], code: int, message: str
) -> None:
    monkeypatch.chdir(run.parent)
    assert main(["eval", "agents", *arguments, "-o", "report", "--resamples", "100"]) == code
    assert message in capsys.readouterr().err
    assert not Path("report").exists()


def test_all_problems_of_an_agent_are_reported_at_once(tmp_path: Path, capsys: Output) -> None:
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text('{"id": "1", "task": "qa", "input": "a?", "answers": ["b"], "split": "train"}\n')
    command = ["train", "agent", "--task", "slots", "--augmentation", "prompt", "-k", "0"]
    assert main([*command, "--data", str(tasks), "--output", str(tmp_path / "out")]) == 1
    stderr = capsys.readouterr().err
    for part in ("--augmentation is 'prompt'", "--k is 0", "passages.jsonl"):
        assert part in stderr
    assert not list((tmp_path / "out").glob("*.pt"))


def test_a_folder_is_needed(capsys: Output) -> None:
    assert main(["train", "agent", "--task", "qa"]) == 2
    assert "--output is missing" in capsys.readouterr().err
