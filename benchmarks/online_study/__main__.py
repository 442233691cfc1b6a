"""Replay agents who ask one query after the other: ``python -m benchmarks.online_study --help``.

``score`` finds and scores the candidates of the agents' queries, once. A replay with ``frozen`` or ``fusion``
takes seconds then; one that trains parameters takes minutes for each agent and seed.
"""

from __future__ import annotations

import argparse
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, cast, get_args

import torch

from benchmarks import csv_rows
from benchmarks.online_study import headroom, queries, records, replaying
from evenmesh_kit.compute.placement import Placement
from evenmesh_reranker import bundled
from evenmesh_reranker.backends.encoder import EncoderLoader
from evenmesh_training.online.training_examples import Learns

SCORE: Final = "score"
HEADROOM: Final = "headroom"


def main() -> None:
    """Score, or replay agents with seeds and write a row for each query."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.online_study", description=__doc__)
    add = parser.add_argument
    systems = (records.FROZEN, *get_args(Learns), records.ALWAYS, records.JUDGED_ALL)
    add("what", choices=(SCORE, HEADROOM, *systems), help="what to do or learn")
    add("--agents", nargs="+", choices=queries.AGENTS, default=queries.AGENTS)
    add("--seeds", nargs="+", type=int, default=[1, 2, 3, 4, 5])
    add("--home", type=Path, default=Path("build/online-study"), help="folder of scores and models")
    given = parser.parse_args()
    torch.set_num_threads(1)
    home: Path = given.home
    home.mkdir(parents=True, exist_ok=True)
    folder = bundled.assemble(home / "models")
    model = EncoderLoader(Placement.choose("cpu", "float32")).full(
        folder, "bundled", provenance="", created_at=datetime.now(UTC)
    )
    always, all_judged = given.what == records.ALWAYS, given.what == records.JUDGED_ALL
    named = {records.FROZEN: None, records.ALWAYS: "model", records.JUDGED_ALL: "fusion"}
    learns = cast("Learns | None", named.get(given.what, given.what))
    judged = queries.CANDIDATES if all_judged else replaying.SHOWN
    if given.what == HEADROOM:
        ships = model.fusions.others
        found = [headroom.row(agent, queries.read(agent, home), ships) for agent in queries.AGENTS]
        csv_rows.write(records.OUT / "headroom.csv", found)
        return
    for agent in given.agents:
        if given.what == SCORE:
            queries.score(agent, model, home)
            continue
        if not (asked := queries.read(agent, home)):
            parser.error(f"{home} has no scores of {agent}: run {SCORE} first")
        for seed in given.seeds:
            replayed = replaying.replayed(
                agent, asked, model, learns=learns, seed=seed, always=always, judged=judged
            )
            rows = list(replayed)
            records.add(given.what, rows)
            last = rows[-1]["rounds"]
            sys.stderr.write(f"{given.what} {agent} seed {seed}: {len(rows)} queries, {last} rounds served\n")


if __name__ == "__main__":
    main()
