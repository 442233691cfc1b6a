"""``python -m services.reranker.bundled.warm_start``: the cross-encoder before it meets an agent.

Supervised: SQuAD's gold passages against BM25's best wrong ones. Articles that wiki-multitask asks about are
left out, so that none of its questions is seen here; a reader that is begun with may have seen them. Started
again, it goes on where it stopped or was killed.
"""

from __future__ import annotations

import argparse
import csv
import json
import logging
import signal
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import torch
import transformers

from services.reranker.bundled import base, squad
from services.reranker.training.learning import Options, learn

_log = logging.getLogger("ragmesh.reranker.warm_start")


def main() -> int:
    """Trains and writes ``OUTPUT/model``."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="folder of squad-open and wiki-multitask")
    parser.add_argument("--output", type=Path, required=True, help="folder for checkpoint, log and model")
    parser.add_argument("--reader", type=Path, help="weights of a pointer model whose layers are begun with")
    parser.add_argument("--steps", type=int, default=1200, help="optimiser steps")
    parser.add_argument("--batch-size", type=int, default=16, help="pairs of a step")
    parser.add_argument("--negatives", type=int, default=2, help="wrong passages of a question")
    parser.add_argument("--rate", type=float, default=8e-5, help="learning rate at its top")
    parser.add_argument("--max-length", type=int, default=144, help="longest pair, in tokens")
    parser.add_argument("--seed", type=int, default=23)
    parser.add_argument("--float32", action="store_true", help="instead of bfloat16 matrix products")
    told = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    torch.set_num_threads(1)
    told.output.mkdir(parents=True, exist_ok=True)
    without = articles(told.data)
    _log.info("%d articles that wiki-multitask asks about are left out", len(without))
    corpus = squad.Corpus(told.data / "squad-open", "train", without)
    pairs = told.steps * told.batch_size
    examples = squad.ranking_examples(
        corpus, questions=-(-pairs // (1 + told.negatives)), negatives=told.negatives, seed=told.seed
    )[:pairs]
    tokenizer, model = base.fresh(seed=told.seed, reader=told.reader)
    options = Options(
        epochs=1,
        batch_size=told.batch_size,
        micro_batch=told.batch_size,
        learning_rate=told.rate,
        warm_up=0.06,
        decay=0.94,
        max_length=told.max_length,
        unknown_share=0.0,
        seed=told.seed,
        bf16=not told.float32,
        checkpoint_every=25,
    )
    stopping: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda got, _: stopping.append(got))
    began = time.monotonic()
    with (told.output / "log.csv").open("a", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)

        def watch(done: int, steps: int, loss: float) -> None:
            writer.writerow([done, f"{loss:.5f}", f"{time.monotonic() - began:.1f}"])
            stream.flush()
            if done % 25 == 0:
                _log.info("step %d of %d, loss %.4f", done, steps, loss)

        learned = learn(
            tokenizer,
            model,
            examples,
            options,
            watcher=watch,
            checkpoint=told.output / "learning.pt",
            stop=lambda: bool(stopping),
        )
    if not learned.complete:
        _log.info("stopped after %d steps; the same command goes on", learned.steps)
        return 130
    folder = told.output / "model"
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    record = {
        "ended_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "steps": learned.steps,
        "batch_size": told.batch_size,
        "negatives": told.negatives,
        "learning_rate": told.rate,
        "max_length": told.max_length,
        "seed": told.seed,
        "bfloat16": not told.float32,
        "reader_sha256": base.fingerprint(told.reader) if told.reader else None,
        "examples": len(examples),
        "questions_in_corpus": len(corpus.questions),
        "articles_left_out": len(without),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "last_losses": learned.losses[-25:],
    }
    (told.output / "warm_start.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    _log.info("all %d steps done; the model is in %s", learned.steps, folder)
    return 0


def articles(data: Path) -> frozenset[str]:
    """Titles of the SQuAD articles whose passages wiki-multitask holds."""
    return frozenset(
        row["title"]
        for row in squad.lines(data / "wiki-multitask" / "passages.jsonl.gz")
        if row["id"].startswith("squad11-train-")
    )


if __name__ == "__main__":
    sys.exit(main())
