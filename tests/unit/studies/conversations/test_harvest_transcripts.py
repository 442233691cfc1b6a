"""Transcripts of conversations: their lines are those that are said, whatever characters are in them."""

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

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
