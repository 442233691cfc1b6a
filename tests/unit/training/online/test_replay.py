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

from evenmesh_core.errors import InvalidInput
from evenmesh_core.significance import paired_bootstrap
from evenmesh_lab.files.agent_runs import OFFLINE, ONLINE, read_agent_runs
from evenmesh_reranker.backends.encoder import Encoder
from evenmesh_reranker.domain import Agent
from evenmesh_training.ium.learning import Options
from evenmesh_training.online.replay import Query, ReplayOptions, Step, read_stream
from evenmesh_training.online.study import replayed, study
from tests.support import tiny_encoders
from tests.support.online_world import Stream, corpus, likes

ANN = Agent("qa", "ann")
OPTIONS = Options(
    epochs=4, batch_size=16, micro_batch=16, learning_rate=1e-2, max_length=64, unknown_share=0.0
)


SEEDS = range(int(os.environ.get("EVENMESH_REPLAY_SEEDS", "1")))
BATCHES = tuple(map(int, os.environ.get("EVENMESH_REPLAY_BATCHES", "30").split(",")))
"""More of either, as docs/guides/online.md reports, take minutes."""


def _examples(count: int, *, seed: int = 0) -> list[Query]:
    stream, taste = Stream(corpus(200, seed=seed), judged=8, seed=seed + 1), likes("water")
    return [
        Query(stream.query(at), tuple(found), usefulness=tuple(map(taste, found)))
        for at in range(count)
        for found in [stream.candidates(at)]
    ]


def _replayed(examples: Sequence[Query], base: Encoder, settings: ReplayOptions) -> list[Step]:
    return asyncio.run(replayed(examples, ANN, base, settings))


def _utilities(steps: Iterable[Step]) -> list[float]:
    return [one.utility for one in steps if one.utility is not None]


def test_online_training_beats_the_frozen_model_over_the_last_third(folder: Path) -> None:
    base = tiny_encoders.encoder(folder, version="base")
    last: dict[int | None, list[float]] = defaultdict(list)
    served: dict[int, int] = defaultdict(int)
    for seed in SEEDS:
        examples, options = _examples(90, seed=seed), replace(OPTIONS, seed=seed)
        frozen = _replayed(examples, base, ReplayOptions(None, 4, options))
        assert {one.rounds for one in frozen} == {0}
        last[None] += _utilities(frozen[60:])
        for batch in BATCHES:
            online = _replayed(examples, base, ReplayOptions(batch, 4, options))
            before = _utilities(online[:batch])
            assert before == _utilities(frozen[:batch])
            served[batch] += online[-1].rounds
            last[batch] += _utilities(online[60:])
        # What serves all is not changed by it.
        assert _replayed(examples[:3], base, ReplayOptions(None, 4, options)) == frozen[:3]
    for batch in BATCHES:
        found = paired_bootstrap(last[batch], last[None], rng=0)
        difference = found.difference
        sys.stdout.write(
            f"b = {batch}: {difference.value:+.3f} [{difference.low:+.3f}, {difference.high:+.3f}], "
            f"p = {found.p_value:.2g}; {served[batch]} rounds served\n"
        )
        assert served[batch] > 0
        assert difference.low > 0


def test_a_fusion_that_is_learned_online_ranks_the_rest_of_the_stream(folder: Path) -> None:
    """Useful is what the first stage has in its better half; the model knows nothing of it."""
    base = tiny_encoders.encoder(folder, version="base")
    stream = [
        replace(one, scores=scores, usefulness=tuple(float(score > 3.5) for score in scores))
        for one in _examples(150)
        for scores in [tuple(float(8 - at) for at in range(8))]
    ]
    frozen = _replayed(stream, base, ReplayOptions(None, 4, OPTIONS))
    online = _replayed(stream, base, ReplayOptions(100, 4, OPTIONS, learns="fusion"))
    assert _utilities(online[:100]) == _utilities(frozen[:100])
    assert online[-1].rounds == 1
    assert sum(_utilities(online[100:])) > sum(_utilities(frozen[100:])) + 5
    # Without the first stage's scores there is nothing to fuse with.
    alone = [replace(one, scores=None) for one in stream]
    assert _replayed(alone, base, ReplayOptions(100, 4, OPTIONS, learns="fusion"))[-1].rounds == 0


def test_of_one_query_nothing_can_be_held_back_and_it_is_learned_from(folder: Path) -> None:
    base = tiny_encoders.encoder(folder, version="base")
    steps = _replayed(_examples(3), base, ReplayOptions(1, 4, replace(OPTIONS, epochs=1)))
    assert [one.rounds for one in steps] == [0, 0, 0]  # fewer than five decide nothing


def test_the_command_writes_records_and_tells_of_thirds(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stream = tmp_path / "stream.jsonl"
    stream.write_text(
        "".join(
            json.dumps(
                {
                    "query": one.text,
                    "passages": [{"id": passage.id, "text": passage.text} for passage in one.passages],
                    "usefulness": one.usefulness,
                }
            )
            + "\n"
            for one in _examples(24)
        )
    )
    out = tmp_path / "runs.jsonl"
    given = ["--model", str(folder), "--out", str(out), "-b", "12", "-k", "3", "--epochs", "1"]
    assert study([str(stream), *given, "--max-length", "64"]) == 0
    records = read_agent_runs([out])
    assert [one.system for one in records] == [OFFLINE] * 24 + [ONLINE] * 24
    assert {(one.batch_size, one.shown) for one in records} == {(None, 3), (12, 3)}
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("frozen: utility by thirds")
    assert lines[1].startswith("online, b = 12: utility by thirds")

    assert study([str(stream), *given, "--learns", "fusion"]) == 0
    assert "; 0 rounds served; " in capsys.readouterr().out  # there are no scores of a first stage

    assert study([str(tmp_path / "nothing"), *given]) == 2
    stream.write_text('{"query": "q", "passages": [{"id": "p", "text": "t"}], "usefulness": [2]}\n')
    assert study([str(stream), *given]) == 2
    assert "stream.jsonl:1.usefulness is (2.0,); allowed: [0, 1]" in capsys.readouterr().err
    with pytest.raises(InvalidInput, match="batch"):
        _replayed(_examples(1), tiny_encoders.encoder(folder, version="b"), ReplayOptions(0, 1, OPTIONS))
    with pytest.raises(InvalidInput, match="judged"):
        _replayed(
            _examples(1),
            tiny_encoders.encoder(folder, version="b"),
            ReplayOptions(None, 3, OPTIONS, judged=2),
        )
    for scores in ("[1, 2]", "[NaN]", "[]"):
        line = f'{{"query": "q", "passages": [{{"id": "p", "text": "t"}}], "usefulness": [1], "scores": {scores}}}\n'
        stream.write_text(line)
        with pytest.raises(
            InvalidInput, match=r"stream\.jsonl:1\.scores is .*a finite score for each passage"
        ):
            read_stream(stream)
    stream.write_text("{}\n")
    with pytest.raises(InvalidInput, match=r"stream\.jsonl:1"):
        read_stream(stream)
