"""Runs of agents: what is written is read again, and what is wrong is named with its line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from evenmesh_lab.files import FileError
from evenmesh_lab.files.agent_runs import AgentRunRecord, agent_run_line, read_agent_runs, write_agent_runs

RECORDS = [
    AgentRunRecord(
        task_id="qa-open", model_id="fid", query_id="q1", system="bm25", ranking=["p2", "p1"], utility=1.0
    ),
    AgentRunRecord(
        task_id="qa-open",
        model_id="fid",
        query_id="q1",
        system="online-ium",
        ranking=["p1", "p2", "p3"],
        shown=2,
        utility=None,
        answer="é\nb",
        seed=3,
        dataset="nq",
        personalised=False,
        batch_size=64,
        position=0,
        reranker_version="v1",
        agent_version="g1",
    ),
    AgentRunRecord(
        task_id="qa-open", model_id="fid", query_id="q1", system="offline-ium", ranking=[], iteration=0
    ),
]


@pytest.mark.parametrize("name", ["runs.jsonl", "runs.jsonl.gz", "runs.parquet"])
def test_what_is_written_is_read(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    write_agent_runs(RECORDS, path)
    assert read_agent_runs([path]) == RECORDS
    first = path.read_bytes()
    write_agent_runs(RECORDS, path)
    assert path.read_bytes() == first
    assert [one.name for one in tmp_path.iterdir()] == [name]


def test_several_files_are_one_run(tmp_path: Path) -> None:
    """What two of them have alike counts once."""
    write_agent_runs(RECORDS[:2], tmp_path / "a.jsonl")
    write_agent_runs(RECORDS[1:], tmp_path / "b.parquet")
    assert read_agent_runs([tmp_path / "a.jsonl", tmp_path / "b.parquet"]) == RECORDS
    assert RECORDS[0].agent == "qa-open/fid"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ranking": ["a", "a"]}, "ranks a passage twice"),
        ({"shown": 3}, "shown: 3 of a ranking of 2 passages"),
        ({"utility": 1.5}, "utility: input should be less than or equal to 1"),
        ({"utility": float("nan")}, "utility"),
        ({"systm": "bm25"}, "has the unknown column 'systm'"),
        ({"batch_size": 0}, "batch_size"),
        ({"utility": 0.0}, "'qa-open/fid', query 'q1', 'bm25' otherwise than .*:1"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    path = tmp_path / "runs.jsonl"
    first = agent_run_line(RECORDS[0])
    path.write_text(f"{first}\n{json.dumps(json.loads(first) | changes)}\n", encoding="utf-8")
    with pytest.raises(FileError, match=message) as caught:
        read_agent_runs([path])
    assert ":2" in str(caught.value)


def test_files_of_other_kinds(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"neither \.jsonl nor \.parquet"):
        read_agent_runs([tmp_path / "runs.txt"])
    with pytest.raises(ValueError, match=r"\.jsonl"):
        write_agent_runs(RECORDS, tmp_path / "runs.txt")
    assert not list(tmp_path.iterdir())
