"""The runner of all studies: it resumes, writes side files first, and counts what is missing."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import grpc
import pytest

from evenmesh.types.events import Degraded, Done, Failed
from evenmesh.wire.errors import MeshError, Unavailable
from evenmesh_lab.files import FileError
from evenmesh_studies.runner import WHOLE, Result, Shard, StudyRunner
from evenmesh_studies.runner.events import collect
from tests.support.study_runs import run

pytestmark = pytest.mark.usefixtures("short_pauses")


@dataclass(frozen=True)
class Number:
    value: int

    @property
    def name(self) -> str:
        return str(self.value)

    @property
    def title(self) -> str:
        return f"number {self.value}"

    @property
    def records(self) -> str:
        return "odd" if self.value % 2 else "even"


@dataclass(frozen=True)
class Numbers:
    kind: ClassVar[str] = "count"
    most: int = 6

    def units(self, shard: Shard = WHOLE) -> Iterator[Number]:
        yield from map(Number, shard.of(range(self.most)))

    def settings(self, shard: Shard = WHOLE) -> dict[str, Any]:
        return {"most": self.most, **shard.settings}


async def square(unit: Number) -> Result:
    return Result([str(unit.value**2)], {"exponent": "2"}, [f"squared {unit.value}"], {"seen": [unit.name]})


async def test_results_go_to_the_files_of_their_units_in_order(tmp_path: Path) -> None:
    recorder = await run(StudyRunner(Numbers(), tmp_path, in_flight=4), square)
    assert (tmp_path / "even.jsonl").read_text() == "0\n4\n16\n"
    assert (tmp_path / "odd.jsonl").read_text() == "1\n9\n25\n"
    assert (tmp_path / "seen.jsonl").read_text() == "0\n1\n2\n3\n4\n5\n"
    assert recorder.notes == [f"squared {value}" for value in range(6)]


async def test_a_run_that_failed_resumes_to_the_same_bytes(tmp_path: Path) -> None:
    async def fails(unit: Number) -> Result:
        if unit.value == 3:
            raise MeshError(grpc.StatusCode.INVALID_ARGUMENT, "NO", "no")
        return await square(unit)

    runner = StudyRunner(Numbers(), tmp_path / "parts")
    with pytest.raises(MeshError, match="number 3: no"):
        await run(runner, fails)
    assert runner.missing(runner.stored()) == 3
    resumed = await run(runner, square)
    assert [unit.value for unit in resumed.written_units] == [3, 4, 5]
    await run(StudyRunner(Numbers(), tmp_path / "whole"), square)
    for path in (tmp_path / "whole").iterdir():
        assert (tmp_path / "parts" / path.name).read_bytes() == path.read_bytes()


async def test_a_side_file_of_a_killed_unit_is_not_written_twice(tmp_path: Path) -> None:
    runner = StudyRunner(Numbers(), tmp_path)
    with runner.journal() as journal:
        journal.add("seen 0", "seen.jsonl", ["0"])
    await run(runner, square)
    assert (tmp_path / "seen.jsonl").read_text() == "0\n1\n2\n3\n4\n5\n"


async def test_a_transient_failure_repeats_the_unit(tmp_path: Path) -> None:
    failures = [Unavailable("AWAY", "away")] * 2

    async def fails_twice(unit: Number) -> Result:
        if unit.value == 2 and failures:
            raise failures.pop()
        return await square(unit)

    recorder = await run(StudyRunner(Numbers(), tmp_path), fails_twice)
    assert recorder.pauses == ["AWAY", "AWAY"]
    assert [unit.value for unit in recorder.written_units] == list(range(6))


async def test_facts_must_not_change_within_a_run(tmp_path: Path) -> None:
    async def changing(unit: Number) -> Result:
        return Result([], {"version": "1" if unit.value < 4 else "2"})

    with pytest.raises(FileError, match="version was '1' and is '2' now"):
        await run(StudyRunner(Numbers(), tmp_path), changing)


async def test_shards_count_what_the_others_miss(tmp_path: Path) -> None:
    first = StudyRunner(Numbers(), tmp_path, Shard(0, 2))
    await run(first, square)
    assert first.missing(first.stored()) == 3
    await run(StudyRunner(Numbers(), tmp_path, Shard(1, 2)), square)
    assert first.missing(first.stored()) == 0


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (Degraded("rerank", "retriever_order", "UPSTREAM_UNAVAILABLE", "away"), "UPSTREAM_UNAVAILABLE"),
        (Failed((0,), "UNAVAILABLE", "GONE", "gone", ""), "NO_ANSWER"),
        (None, "CUT_OFF"),
    ],
    ids=["degraded", "failed", "cut off"],
)
async def test_incomplete_streams_are_asked_for_again(event: object, reason: str) -> None:
    async def events() -> Any:
        if event is not None:
            yield event
            yield Done("a", "r", {}, 1.0)

    with pytest.raises(Unavailable) as caught:
        await collect(events(), until_done="ask")
    assert caught.value.reason == reason


async def test_an_observation_that_is_lost_repeats_nothing() -> None:
    lost = Degraded("observe", "skipped", "UPSTREAM_UNAVAILABLE", "away")

    async def events() -> Any:
        yield lost
        yield Done("a", "r", {}, 1.0)

    assert (await collect(events(), until_done="ask"))[0] == lost
