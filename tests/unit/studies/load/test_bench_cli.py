"""``evenmesh bench`` as a user calls it, against a small real server."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from evenmesh.commands import main
from evenmesh_studies.load.calls.clients import ProcessClient
from evenmesh_studies.load.calls.inputs import Item
from evenmesh_studies.load.session import Session, read_steps
from evenmesh_studies.load.settings import CallSettings
from evenmesh_studies.load.step import Step
from tests.support.scripted import ScriptedMesh, script

QUICK = ["--seconds", "0.4", "--calls", "0", "--warm-up", "1"]


@pytest.fixture
def mesh(scripted: ScriptedMesh, monkeypatch: pytest.MonkeyPatch) -> ScriptedMesh:
    """A scripted mesh that the commands find, without what degrades in its script."""
    for service, address in scripted.addresses.items():
        monkeypatch.setenv(f"EVENMESH_CLIENT_{service.upper()}_TARGET", address)
    scripted.orchestrator.events = [one for one in script() if one.WhichOneof("event") != "degraded"]
    return scripted


def _bench(*words: object) -> int:
    return main(["bench", *map(str, words)])


def test_loads_are_measured_reported_and_not_measured_again(mesh: ScriptedMesh, tmp_path: Path) -> None:
    out = tmp_path / "run"
    words = ["load", "ask", "--out", out, "--rate", "20", "--concurrency", "1,2", *QUICK]
    assert _bench(*words) == 0
    report = json.loads((out / "report.json").read_text(encoding="utf-8"))
    assert [one["name"] for one in report["steps"]] == ["closed-1", "closed-2", "open-20"]
    assert all(one["codes"] == {"OK": one["calls"]} for one in report["steps"] if one["calls"])
    closed = report["steps"][0]
    assert closed["stages_ms"]["retrieve"]["mean"] == 12.5
    assert closed["quantities"]["expected_utility"]["mean"] == 0.75
    assert closed["first_text_ms"]["count"] == closed["calls"]
    assert closed["between_ms"]["count"] > 0
    text = (out / "report.md").read_text(encoding="utf-8")
    assert "## Bottleneck" in text
    assert "cores" in text
    asked = len(mesh.orchestrator.requests)
    questions = [one.question for one in mesh.orchestrator.requests]
    assert len(set(questions)) == asked  # each has a number of its own
    assert _bench(*words) == 0
    assert len(mesh.orchestrator.requests) == asked + 1  # only the warm-up


def test_a_ramp_says_where_the_knee_is_or_is_not(
    mesh: ScriptedMesh, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    assert _bench("ramp", "ask", "--out", out, "--rate", "2,4", "--concurrency", "1,2", *QUICK) == 0
    report = json.loads((out / "report.json").read_text(encoding="utf-8"))
    assert [one["kind"] for one in report["steps"]] == ["closed", "closed", "open", "open"]
    assert next(one["model"] for one in report["predicted"]) == "flow-equivalent station"
    assert report["slo"]["latency_ms"] == pytest.approx(4 * report["steps"][0]["latency_ms"]["p50"])
    # The scripted mesh runs elsewhere, as far as is known: its processor time is unknown.
    assert _bench("capacity", out) == 1
    assert "--pid" in capsys.readouterr().err


def test_a_sweep_has_a_step_for_each_setting_and_a_front(mesh: ScriptedMesh, tmp_path: Path) -> None:
    out = tmp_path / "run"
    words = ["--vary", "alpha=none,2", "--vary", "k=1,2", "--samples", "3"]
    assert _bench("sweep", "ask", "--out", out, *words, *QUICK) == 0
    names = [one.step.name for one in read_steps(out / "steps.jsonl")]
    assert names == ["alpha=none,k=1", "alpha=none,k=2", "alpha=2,k=1", "alpha=2,k=2"]
    sampled = {(one.HasField("sampling"), one.k) for one in mesh.orchestrator.requests[1:]}
    assert sampled == {(False, 1), (False, 2), (True, 1), (True, 2)}
    assert (out / "front.png").read_bytes().startswith(b"\x89PNG")
    facts = json.loads((out / "report.json").read_text(encoding="utf-8"))["facts"]
    assert facts["passages"] == "N = 100, k varied"
    assert facts["rankings"] == "by α, 3 rankings where there is one"


def test_n_is_how_many_are_found_and_how_many_are_reranked(mesh: ScriptedMesh, tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert _bench("sweep", "ask", "--out", out, "--vary", "N=20,50,100", *QUICK) == 0
    sizes = {(one.depth, one.rerank_depth) for one in mesh.orchestrator.requests[1:]}
    assert sizes == {(20, 20), (50, 50), (100, 100)}
    assert not (out / "front.png").exists()  # without a dial there is no tradeoff


def test_a_trace_is_played(mesh: ScriptedMesh, tmp_path: Path) -> None:
    trace = tmp_path / "trace.txt"
    trace.write_text("5.0\n5.1\n5.4\n", encoding="utf-8")
    assert _bench("load", "ask", "--out", tmp_path / "run", "--trace", trace, "--warm-up", "0") == 0
    (step,) = read_steps(tmp_path / "run" / "steps.jsonl")
    assert [call.intended_s for call in step.calls] == pytest.approx([0, 0.1, 0.4])


def test_runs_are_compared_and_the_gate_closes(
    mesh: ScriptedMesh, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("before", "after"):
        assert _bench("load", "ask", "--out", tmp_path / name, "--concurrency", "1", *QUICK) == 0
    lines = (tmp_path / "before" / "steps.jsonl").read_text(encoding="utf-8")
    assert _bench("compare", tmp_path / "before", tmp_path / "before", "--slower", "1000") == 0
    # The same calls, each a second longer.
    record = json.loads(lines)
    record["calls"]["ended_s"] = [one + 1 for one in record["calls"]["ended_s"]]
    (tmp_path / "after" / "steps.jsonl").write_text(json.dumps(record) + "\n", encoding="utf-8")
    capsys.readouterr()
    assert _bench("compare", tmp_path / "before", tmp_path / "after", "--json") == 1
    found = json.loads(capsys.readouterr().out)
    assert found["passed"] is False
    assert "worse" in {one["verdict"] for one in found["changes"]}


def test_all_problems_are_reported_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["-N", "0", "-k", "200", "--rate", "a,-1", "--pid", "x", "--seconds", "-3", "--trace", "/none"]
    assert _bench("load", "shout", "--out", tmp_path / "run", *words) == 2
    said = capsys.readouterr().err
    for what in (
        "'a'",
        "'shout'",
        "N is 0",
        "k is 200",
        "rate is -1",
        "pid is 'x'",
        "seconds is -3",
        "/none",
    ):
        assert what in said
    assert _bench("sweep", "ask", "--out", tmp_path / "run", "--vary", "k=200", "--vary", "colour=1") == 2
    said = capsys.readouterr().err
    assert "k is 200" in said
    assert "colour" in said
    assert _bench("compare", tmp_path, tmp_path, "--slower", "-1") == 2
    assert "slower is -1" in capsys.readouterr().err
    assert _bench("load", "ask", "--out", tmp_path / "run", "--rate", "1e-9") == 2
    assert "rate is 1e-09; allowed: 0.001 to 100,000" in capsys.readouterr().err
    (tmp_path / "report.json").write_text("{}", encoding="utf-8")
    assert _bench("capacity", tmp_path, "--asks", "") == 2
    assert "asks has no rate" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_run_does_not_go_on_with_other_settings(mesh: ScriptedMesh, tmp_path: Path) -> None:
    words = ["load", "ask", "--out", tmp_path / "run", "--concurrency", "1", *QUICK]
    assert _bench(*words) == 0
    assert _bench(*words, "-k", "3") == 1


def test_a_run_does_not_go_on_with_other_questions(
    mesh: ScriptedMesh, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    questions = tmp_path / "questions.jsonl"
    words = ["load", "ask", "--out", tmp_path / "run", "--concurrency", "1", "--queries", questions, *QUICK]
    questions.write_text('{"query_id": "a", "question": "Who?", "references": ["I"]}\n', encoding="utf-8")
    assert _bench(*words) == 0
    assert _bench(*words) == 0
    questions.write_text('{"query_id": "a", "question": "Why?", "references": ["I"]}\n', encoding="utf-8")
    capsys.readouterr()
    assert _bench(*words) == 1
    assert "queries" in capsys.readouterr().err


def test_the_second_ctrl_c_ends_it_at_once(
    mesh: ScriptedMesh, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def forever(session: Session) -> None:
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.sleep(0.1)
        await asyncio.sleep(3600)

    monkeypatch.setattr(Session, "run", forever)
    assert _bench("load", "ask", "--out", tmp_path / "run", "--rate", "1", *QUICK) == 130
    assert "the same command resumes" in capsys.readouterr().err


def test_failed_asks_are_counted_by_their_code(
    scripted: ScriptedMesh, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for service, _ in scripted.addresses.items():
        monkeypatch.setenv(f"EVENMESH_CLIENT_{service.upper()}_TARGET", "127.0.0.1:1")
    out = tmp_path / "run"
    assert _bench("load", "ask", "--out", out, "--rate", "20,30", *QUICK) == 0
    for step in read_steps(out / "steps.jsonl"):
        assert set(step.codes()) == {"UNAVAILABLE UNREACHABLE"}
        assert step.error_share == 1.0
    assert "UNAVAILABLE" in (out / "report.md").read_text(encoding="utf-8")
    assert _bench("ramp", "ask", "--out", tmp_path / "ramp", *QUICK) == 0
    report = json.loads((tmp_path / "ramp" / "report.json").read_text(encoding="utf-8"))
    assert report["knee"] is None


def test_ctrl_c_leaves_a_report_of_what_was_measured(mesh: ScriptedMesh, tmp_path: Path) -> None:
    out = tmp_path / "run"
    words = [
        "--rate",
        "50",
        "--concurrency",
        "1",
        "--seconds",
        "0.3",
        "--calls",
        "100000",
        "--longest",
        "600",
    ]
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "evenmesh",
            "bench",
            "load",
            "ask",
            "--out",
            str(out),
            *words,
            "--warm-up",
            "0",
        ],
        env=os.environ | {"MPLCONFIGDIR": str(tmp_path)},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        ends = time.monotonic() + 120
        while len(mesh.orchestrator.requests) < 10:
            assert process.poll() is None
            assert time.monotonic() < ends
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 130, said
    report = json.loads((out / "report.json").read_text(encoding="utf-8"))
    assert report["interrupted"] is True
    assert report["steps"][-1]["calls"] > 0
    assert "stopped early" in (out / "report.md").read_text(encoding="utf-8")


async def test_several_processes_make_the_calls_of_one(mesh: ScriptedMesh) -> None:
    step = Step("open-40", "open", 0.5, CallSettings(timeout_s=30), rate=40.0, seed=3)
    async with ProcessClient(mesh.addresses, 2) as client:
        found = await client.drive(step, [Item("q", "Why?")], 1_000, asyncio.Event())
    assert [call.intended_s for call in found.calls] == step.due().tolist()
    assert {call.outcome.code for call in found.calls} == {"OK"}
    asked = {one.question for one in mesh.orchestrator.requests}
    assert asked == {f"Why? ({number})" for number in range(1_000, 1_000 + len(found.calls))}
