"""What online training would have been worth: ``python -m services.reranker.online.study STREAM --model …``.

Replays a stream with frozen parameters and with each b, writes a record for every query and every way of
ranking (which ``raglab.files.agent_runs`` reads), and tells the mean utility of each third of the stream, and
what a paired test of online against frozen says over the last.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import torch

from meshkit import models
from meshkit.placement import Placement
from ragcore.errors import InvalidInput
from ragcore.significance import paired_bootstrap
from raglab.files.agent_runs import AgentRunRecord, write_agent_runs
from services.reranker.backends.encoder import Encoder, EncoderLoader
from services.reranker.domain import Agent
from services.reranker.online.lessons import Lesson
from services.reranker.online.replay import Known, Plan, Step, read_stream, record_of, replay
from services.reranker.training.learning import Options


def study(arguments: Sequence[str]) -> int:
    """Runs the command; its exit status."""
    given = _parser().parse_args(arguments)
    try:
        stream = read_stream(given.stream)
        folder = models.locate(str(given.model), allow_download=False)
        torch.set_num_threads(given.threads)
        base = EncoderLoader(Placement.choose("cpu", "float32")).full(
            folder, models.version(folder), provenance="", created_at=datetime.now(UTC)
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
            plan = Plan(batch, given.shown, options, rank=given.rank)
            steps = asyncio.run(_steps(stream, agent, base, plan))
            records += [
                record_of(one, agent, plan, dataset=given.dataset, version=base.version) for one in steps
            ]
            utilities[batch] = np.array([one.utility for one in steps], dtype=float)
            _tell(batch, utilities, steps[-1].rounds, seed=given.seed)
        write_agent_runs(records, given.out)
    except (InvalidInput, models.ModelError, OSError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


async def _steps(stream: Sequence[Lesson], agent: Agent, base: Encoder, plan: Plan) -> list[Step]:
    known = Known(stream)
    return [one async for one in replay(known.stream, known, agent, base, plan)]


def _tell(batch: int | None, utilities: dict[int | None, np.ndarray], rounds: int, *, seed: int) -> None:
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
    parser = argparse.ArgumentParser(prog="python -m services.reranker.online.study", description=__doc__)
    add = parser.add_argument
    add("stream", type=Path, help="JSON lines: query, passages, usefulness")
    add("--model", type=Path, required=True, help="folder of the cross-encoder to begin with")
    add("--out", type=Path, required=True, help="file of the records, .jsonl, .jsonl.gz or .parquet")
    add("--task", default="study", help="task id of the agent")
    add("--agent", default="agent", help="model id of the agent")
    add("--dataset", default=None, help="what the stream comes from")
    add("--batches", "-b", type=int, nargs="+", default=[256], help="b, queries between two trainings")
    add("--shown", "-k", type=int, default=4, help="passages the agent is given")
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
