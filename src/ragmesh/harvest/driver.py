"""The run of a harvest: a few conversations at a time, each written once, through restarts."""

import asyncio
import json
from collections.abc import Sequence
from typing import Final, Protocol

from raglab.files import Journal
from ragmesh.harvest.plan import Cell
from ragmesh.harvest.talkers import Held, Talker
from ragmesh.patience import Waits, in_order, patiently

RECORDS: Final = "conversations.jsonl"
"""File of the conversations as they were held, beside the journal."""


class Watcher(Waits, Protocol):
    """Who is told how the run goes."""

    def written(self, what: Cell) -> None:
        """A conversation is written."""


async def run(
    talker: Talker,
    journal: Journal,
    cells: Sequence[Cell],
    watcher: Watcher,
    *,
    in_flight: int = 1,
    patience_s: float = 600.0,
) -> None:
    """Holds the conversations that are not written yet; they are written in their order.

    Args:
        talker: holds them.
        journal: where they are written.
        cells: all of them.
        watcher: is told how it goes.
        in_flight: conversations at a time, from 1.
        patience_s: how long one may fail before the run gives up. Seconds.

    Raises:
        MeshError: one is refused, or fails for longer than that.
        FileError: what is talked with changed since the run began.
    """
    done = set(journal.done)

    async def held(cell: Cell) -> Held:
        what = f"topic {cell.topic.name!r} with {cell.system.name}, trial {cell.trial}"
        return await patiently(lambda: talker.hold(cell), what, watcher, patience_s=patience_s)

    async def write(cell: Cell, found: Held) -> None:
        await asyncio.to_thread(journal.add, cell.name, RECORDS, [_record(cell, found)], found.facts)
        watcher.written(cell)

    todo = [cell for cell in cells if cell.name not in done]
    await in_order(todo, held, write, in_flight=in_flight)


def _record(cell: Cell, held: Held) -> str:
    return json.dumps(
        {
            "system": cell.system.name,
            "trial": cell.trial,
            "topic": cell.topic.name,
            "turns": [
                {"text": said.text, "useful": said.useful, "breakdown": said.breakdown} for said in held.said
            ],
            "transcript": list(held.lines),
        },
        ensure_ascii=False,
    )
