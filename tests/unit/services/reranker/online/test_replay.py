"""Online IUM on a stream of an agent whose taste the model was not trained for."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from ragcore.errors import InvalidInput
from ragcore.significance import paired_bootstrap
from raglab.files.agent_runs import OFFLINE, ONLINE, read_agent_runs
from services.reranker.backends.encoder import Encoder
from services.reranker.domain import Agent
from services.reranker.online.lessons import Lesson
from services.reranker.online.replay import Known, Plan, Step, read_stream, replay
from services.reranker.online.study import study
from services.reranker.training.learning import Options
from tests import tiny_encoders
from tests.online_world import Stream, likes, shelf

ANN = Agent("qa", "ann")
OPTIONS = Options(
    epochs=4, batch_size=16, micro_batch=16, learning_rate=1e-2, max_length=64, unknown_share=0.0
)


SEEDS = range(int(os.environ.get("RAGMESH_REPLAY_SEEDS", "1")))
BATCHES = tuple(map(int, os.environ.get("RAGMESH_REPLAY_BATCHES", "30").split(",")))
"""More of either, as docs/online.md reports, take minutes."""


def _lessons(count: int, *, seed: int = 0) -> list[Lesson]:
    stream, taste = Stream(shelf(200, seed=seed), judged=8, seed=seed + 1), likes("water")
    return [
        Lesson(stream.query(at), tuple(found), tuple(map(taste, found)))
        for at in range(count)
        for found in [stream.candidates(at)]
    ]


def _replayed(lessons: Sequence[Lesson], base: Encoder, plan: Plan) -> list[Step]:
    async def steps() -> list[Step]:
        known = Known(lessons)
        return [one async for one in replay(known.stream, known, ANN, base, plan)]

    return asyncio.run(steps())


def _utilities(steps: Iterable[Step]) -> list[float]:
    return [one.utility for one in steps if one.utility is not None]


def test_online_training_beats_the_frozen_model_over_the_last_third(folder: Path) -> None:
    base = tiny_encoders.encoder(folder, version="base")
    last: dict[int | None, list[float]] = defaultdict(list)
    for seed in SEEDS:
        lessons, options = _lessons(90, seed=seed), replace(OPTIONS, seed=seed)
        frozen = _replayed(lessons, base, Plan(None, 4, options))
        assert {one.rounds for one in frozen} == {0}
        last[None] += _utilities(frozen[60:])
        for batch in BATCHES:
            online = _replayed(lessons, base, Plan(batch, 4, options))
            before = _utilities(online[:batch])
            assert before == _utilities(frozen[:batch])
            assert online[-1].rounds > 0
            last[batch] += _utilities(online[60:])
        # What serves all is not changed by it.
        assert _replayed(lessons[:3], base, Plan(None, 4, options)) == frozen[:3]
    for batch in BATCHES:
        found = paired_bootstrap(last[batch], last[None], rng=0)
        difference = found.difference
        sys.stdout.write(
            f"b = {batch}: {difference.value:+.3f} [{difference.low:+.3f}, {difference.high:+.3f}], "
            f"p = {found.p_value:.2g}\n"
        )
        assert difference.low > 0


def test_of_one_query_nothing_can_be_held_back_and_it_is_learned_from(folder: Path) -> None:
    base = tiny_encoders.encoder(folder, version="base")
    steps = _replayed(_lessons(3), base, Plan(1, 4, replace(OPTIONS, epochs=1)))
    assert [one.rounds for one in steps] == [0, 0, 0]  # fewer than five decide nothing


def test_the_command_writes_records_and_tells_of_thirds(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stream = tmp_path / "stream.jsonl"
    stream.write_text(
        "".join(
            json.dumps(
                {
                    "query": one.query,
                    "passages": [{"id": passage.id, "text": passage.text} for passage in one.passages],
                    "usefulness": one.usefulness,
                }
            )
            + "\n"
            for one in _lessons(24)
        )
    )
    out = tmp_path / "runs.jsonl"
    told = ["--model", str(folder), "--out", str(out), "-b", "12", "-k", "3", "--epochs", "1"]
    assert study([str(stream), *told, "--max-length", "64"]) == 0
    records = read_agent_runs([out])
    assert [one.system for one in records] == [OFFLINE] * 24 + [ONLINE] * 24
    assert {(one.batch_size, one.shown) for one in records} == {(None, 3), (12, 3)}
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("frozen: utility by thirds")
    assert lines[1].startswith("online, b = 12: utility by thirds")

    assert study([str(tmp_path / "nothing"), *told]) == 2
    stream.write_text('{"query": "q", "passages": [{"id": "p", "text": "t"}], "usefulness": [2]}\n')
    assert study([str(stream), *told]) == 2
    assert "stream.jsonl:1.usefulness is (2.0,); allowed: [0, 1]" in capsys.readouterr().err
    with pytest.raises(InvalidInput, match="batch"):
        _replayed(_lessons(1), tiny_encoders.encoder(folder, version="b"), Plan(0, 1, OPTIONS))
    stream.write_text("{}\n")
    with pytest.raises(InvalidInput, match=r"stream\.jsonl:1"):
        read_stream(stream)
