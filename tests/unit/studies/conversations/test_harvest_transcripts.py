"""Transcripts of conversations: their lines are those that are said, whatever characters are in them."""

import json
import resource
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

from evenmesh.types.conversation import GroupTarget
from evenmesh.types.events import Answer, Cost
from evenmesh_lab.files import read_conversations
from evenmesh_studies.conversations import report
from evenmesh_studies.conversations.plan import ConversationPlan, ConversationUnit, SystemSettings
from evenmesh_studies.conversations.protocol import SystemTurn
from evenmesh_studies.conversations.run import record
from evenmesh_studies.conversations.systems import ConversationRecord, MeshSystem, turn_lines
from evenmesh_studies.conversations.topics import read_topics

ENDS = "one\u2028#L2 two\x85### S9 three\x0c#x: (1)\rfour"
"""Text with what Python takes for ends of lines, and a transcript does not."""


@dataclass
class FakeConversation:
    """Answers every turn with :data:`ENDS`, as a mesh writes it down."""

    turn: int = 0

    @property
    def transcript(self) -> str:
        return "".join(f"### U{at + 1}\nWho?\n### S{at + 1} x\n{ENDS}\n" for at in range(self.turn))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        return None

    async def ask(self, question: str, **about: Any) -> AsyncIterator[Answer]:
        self.turn += 1
        cost = Cost(0.0, 0.0, 0.0, 1, 0, 1)
        yield Answer(ENDS, (0,), (), "stop", 1, 1, 0.0, "m", "7", "pointer", 0, 0, 0, cost)


class FakeClient:
    def converse(self, **options: Any) -> FakeConversation:
        return FakeConversation()


@pytest.fixture
def plan(tmp_path: Path) -> ConversationPlan:
    path = tmp_path / "topics.jsonl"
    path.write_text(json.dumps({"topic": "t", "turns": ["Who?", "And who?"]}) + "\n")
    return ConversationPlan(read_topics(path), [SystemSettings("ranked")])


def test_systems_with_similar_names_have_files_of_their_own(plan: ConversationPlan, tmp_path: Path) -> None:
    names = ("a_b", "a/b", "A:B")
    similar = replace(plan, systems=[SystemSettings(name, model=name) for name in names], trials=1)
    records = [{"system": name, "trial": 1, "transcript": [f"##### {name}"]} for name in names]
    (tmp_path / "conversations.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in records))
    paths, _ = report.write_transcripts(tmp_path, similar)
    assert paths[0].name == "a_b-trial1.txt"
    assert len({path.name.casefold() for path in paths}) == 3
    assert [path.read_text() for path in paths] == [f"##### {name}\n" for name in names]


async def test_lines_end_where_the_mesh_ends_them(plan: ConversationPlan, tmp_path: Path) -> None:
    (unit,) = plan.units()
    held = await MeshSystem(FakeClient(), plan).converse(unit)  # type: ignore[arg-type]  # as far as it is used
    assert held.lines == ("##### t", "### U1", "Who?", "### S1 x", ENDS, "### U2", "Who?", "### S2 x", ENDS)
    _written(tmp_path, plan, unit, held)


def test_lines_of_an_endpoint_are_what_it_says(plan: ConversationPlan, tmp_path: Path) -> None:
    (unit,) = plan.units()
    said = SystemTurn(ENDS, False)
    lines = ["##### t", *turn_lines(1, "Who?", said, ()), *turn_lines(2, "And who?", said, ())]
    _written(tmp_path, plan, unit, ConversationRecord(tuple(lines), (said, said)))


def _written(folder: Path, plan: ConversationPlan, unit: ConversationUnit, held: ConversationRecord) -> None:
    """The file is read as it was held, and nobody is said to have corrected it."""
    (folder / "conversations.jsonl").write_text(record(unit, held) + "\n", encoding="utf-8")
    (path,), corrected = report.write_transcripts(folder, plan)
    assert corrected == []
    (read,) = read_conversations(path)
    assert [turn.words for turn in read.turns][1::2] == [len(ENDS.split())] * 2
    assert report.write_transcripts(folder, plan) == ([path], [])


def test_a_write_that_breaks_off_leaves_no_transcript_that_looks_corrected(
    plan: ConversationPlan, tmp_path: Path
) -> None:
    (unit,) = plan.units()
    said = SystemTurn("word " * 2_000, False)
    held = ConversationRecord(("##### t", *turn_lines(1, "Who?", said, ())), (said,))
    (tmp_path / "conversations.jsonl").write_text(record(unit, held) + "\n", encoding="utf-8")
    with _no_file_above(4_096), pytest.raises(OSError, match="too large"):
        report.write_transcripts(tmp_path, plan)
    (path,), corrected = report.write_transcripts(tmp_path, plan)
    assert corrected == []
    assert path.stat().st_size > 4_096


def test_a_topic_may_be_taken_out_of_one_trial(tmp_path: Path) -> None:
    """Of three trials the first has topic a alone; both topics of the others are of their own trial."""
    topics = tmp_path / "topics.jsonl"
    topics.write_text("".join(json.dumps({"topic": one, "turns": ["Who?"]}) + "\n" for one in "ab"))
    target = GroupTarget("G", ("x", "y"))
    systems = [SystemSettings("alpha=1", 1.0)]
    plan = ConversationPlan(read_topics(topics), systems, trials=3, targets=[target])
    folder = tmp_path / report.TRANSCRIPTS
    folder.mkdir()
    for trial in (1, 2, 3):
        held = "".join(
            f"##### {topic}\n### U1\nWho?\n### S1 o\nhttp://{topic}{trial}\n#L{trial - 1}\n#G: (1,0)\n"
            for topic in ("ab" if trial > 1 else "a")
        )
        (folder / f"alpha=1-trial{trial}.txt").write_text(held)
    found = report.measure(tmp_path, plan)
    assert found.fairness is not None
    assert [(row.topic, row.relevance > 0) for row in found.fairness.rows] == [
        ("a", False),
        ("a", True),
        ("b", True),
        ("a", True),
        ("b", True),
    ]
    (stability,) = found.stability.stability
    assert stability.num_topics == 1


@contextmanager
def _no_file_above(num_bytes: int) -> Iterator[None]:
    """Let no file grow beyond a size, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
