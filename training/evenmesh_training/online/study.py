"""Measure online training on a stream: ``python -m evenmesh_training.online.study STREAM --model …``.

Replays a stream with frozen parameters and with each b, and writes a record of every query and way of ranking
(which ``evenmesh_lab.files.agent_runs`` reads). Prints the mean utility of each third of the stream, and a
paired test of online against frozen parameters over the last third.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import get_args

import numpy as np
import torch

from evenmesh_core.errors import InvalidInput
from evenmesh_core.significance import paired_bootstrap
from evenmesh_kit.compute import model_files
from evenmesh_kit.compute.placement import Placement
from evenmesh_lab.files.agent_runs import AgentRunRecord, write_agent_runs
from evenmesh_reranker.backends.encoder import Encoder, EncoderLoader
from evenmesh_reranker.domain import Agent
from evenmesh_training.ium.learning import Options
from evenmesh_training.online.replay import (
    Query,
    ReplayOptions,
    Step,
    known_judge,
    read_stream,
    record_of,
    replay,
)
from evenmesh_training.online.training_examples import Learns


def study(arguments: Sequence[str]) -> int:
    """Run the command; return its exit status."""
    given = _parser().parse_args(arguments)
    try:
        stream = read_stream(given.stream)
        folder = model_files.locate(str(given.model), allow_download=False)
        torch.set_num_threads(given.threads)
        base = EncoderLoader(Placement.choose("cpu", "float32")).full(
            folder, model_files.version(folder), provenance="", created_at=datetime.now(UTC)
        )
        agent = Agent(given.task, given.agent)
        options = Options(
            epochs=given.epochs,
            batch_size=given.batch_size,
            micro_batch=min(32, given.batch_size),
            learning_rate=given.learning_rate,
            max_length=given.max_length,
            unknown_share=0.0,
            seed=given.seed,
        )
        records: list[AgentRunRecord] = []
        utilities: dict[int | None, np.ndarray] = {}
        for batch in (None, *given.batches):
            settings = ReplayOptions(
                batch,
                given.shown,
                options,
                rank=given.rank,
                learns=given.learns,
                always=given.always,
                judged=given.judged,
            )
            steps = asyncio.run(replayed(stream, agent, base, settings))
            records += [
                record_of(one, agent, settings, dataset=given.dataset, version=base.version) for one in steps
            ]
            utilities[batch] = np.array([one.utility for one in steps], dtype=float)
            _print(batch, utilities, steps[-1].rounds, seed=given.seed)
        write_agent_runs(records, given.out)
    except (InvalidInput, model_files.ModelError, OSError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


async def replayed(
    stream: Sequence[Query], agent: Agent, base: Encoder, settings: ReplayOptions
) -> list[Step]:
    """Replay a stream in which the usefulness of every candidate is known."""
    steps = replay(
        stream, known_judge(stream), agent, base, settings, on_round=lambda one: sys.stderr.write(f"{one}\n")
    )
    return [one async for one in steps]


def _print(batch: int | None, utilities: dict[int | None, np.ndarray], rounds: int, *, seed: int) -> None:
    thirds = " ".join(f"{part.mean():.4f}" for part in np.array_split(utilities[batch], 3))
    if batch is None:
        sys.stdout.write(f"frozen: utility by thirds {thirds}\n")
        return
    last = -(len(utilities[batch]) // 3)
    found = paired_bootstrap(utilities[batch][last:], utilities[None][last:], rng=seed)
    difference = found.difference
    sys.stdout.write(
        f"online, b = {batch}: utility by thirds {thirds}; {rounds} rounds served; over the last third "
        f"{difference.value:+.4f} [{difference.low:+.4f}, {difference.high:+.4f}], p = {found.p_value:.3g}\n"
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m evenmesh_training.online.study", description=__doc__)
    add = parser.add_argument
    add("stream", type=Path, help="JSON lines: query, passages, usefulness, and scores of the first stage")
    add("--model", type=Path, required=True, help="folder of the cross-encoder to start from")
    add("--out", type=Path, required=True, help="file of the records, .jsonl, .jsonl.gz or .parquet")
    add("--task", default="study", help="task id of the agent")
    add("--agent", default="agent", help="model id of the agent")
    add("--dataset", default=None, help="data set of the stream")
    add("--batches", "-b", type=int, nargs="+", default=[256], help="b, queries between two trainings")
    add("--shown", "-k", type=int, default=4, help="passages that the agent is given")
    add("--learns", choices=get_args(Learns), default="model", help="what a round learns")
    add("--judged", type=int, default=None, help="passages that the agent reports on; -k without")
    add("--always", action="store_true", help="serve each candidate, as the paper does")
    add("--epochs", type=int, default=2)
    add("--batch-size", type=int, default=32, help="pairs of a gradient step")
    add("--learning-rate", type=float, default=1e-3)
    add("--max-length", type=int, default=256, help="tokens of a pair")
    add("--rank", type=int, default=8, help="of the adapter")
    add("--seed", type=int, default=0)
    add("--threads", type=int, default=1)
    return parser


if __name__ == "__main__":
    sys.exit(study(sys.argv[1:]))
