"""``python -m evenmesh_training.bundled.reranker_warm_start``: supervised training before any agent.

It learns from SQuAD's gold passages against BM25's best wrong ones. Articles that wiki-multitask asks
about are left out, so that the model sees none of its questions; a reader given by ``--reader`` may have seen
them. The same command resumes a run that was stopped or killed.
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

import evenmesh_models
from evenmesh_lab.files.cells import inert
from evenmesh_training.bundled import reranker_squad as squad
from evenmesh_training.ium.learning import Options, learn
from evenmesh_training.ium.start import fresh

_log = logging.getLogger("evenmesh.reranker.warm_start")


def main() -> int:
    """Train, and write ``OUTPUT/model``."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--data", type=Path, required=True, help="folder of squad-open and wiki-multitask")
    add("--output", type=Path, required=True, help="folder for checkpoint, log and model")
    add("--reader", type=Path, help="weights of a pointer model to start from")
    add("--steps", type=int, default=1200, help="optimiser steps")
    add("--batch-size", type=int, default=16, help="pairs of a step")
    add("--negatives", type=int, default=2, help="wrong passages of a question")
    add("--rate", type=float, default=8e-5, help="learning rate at its top")
    add("--max-length", type=int, default=144, help="longest pair. Tokens")
    add("--seed", type=int, default=23)
    add("--float32", action="store_true", help="instead of bfloat16 matrix products")
    given = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    torch.set_num_threads(1)
    given.output.mkdir(parents=True, exist_ok=True)
    without = articles(given.data)
    _log.info("leave out %d articles that wiki-multitask asks about", len(without))
    corpus = squad.Corpus(given.data / "squad-open", "train", without)
    pairs = given.steps * given.batch_size
    examples = squad.ranking_examples(
        corpus, questions=-(-pairs // (1 + given.negatives)), negatives=given.negatives, seed=given.seed
    )[:pairs]
    tokenizer, model = fresh(seed=given.seed, reader=given.reader)
    options = Options(
        epochs=1,
        batch_size=given.batch_size,
        micro_batch=given.batch_size,
        learning_rate=given.rate,
        warm_up=0.06,
        decay=0.94,
        max_length=given.max_length,
        unknown_share=0.0,
        seed=given.seed,
        bf16=not given.float32,
        checkpoint_every=25,
    )
    stopping: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda got, _: stopping.append(got))
    began = time.monotonic()
    with (given.output / "log.csv").open("a", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)

        def watch(done: int, steps: int, loss: float) -> None:
            took_s = time.monotonic() - began
            writer.writerow([done, inert(f"{loss:.5f}"), f"{took_s:.1f}"])
            stream.flush()
            if done % 25 == 0:
                _log.info("step %d of %d, loss %.4f", done, steps, loss)

        learned = learn(
            tokenizer,
            model,
            examples,
            options,
            on_step=watch,
            checkpoint=given.output / "learning.pt",
            stop=lambda: bool(stopping),
        )
    if not learned.complete:
        _log.info("stopped after %d steps; the same command resumes", learned.steps)
        return 130
    folder = given.output / "model"
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    record = {
        "ended_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "steps": learned.steps,
        "batch_size": given.batch_size,
        "negatives": given.negatives,
        "learning_rate": given.rate,
        "max_length": given.max_length,
        "seed": given.seed,
        "bfloat16": not given.float32,
        "reader_sha256": evenmesh_models.fingerprint(given.reader) if given.reader else None,
        "examples": len(examples),
        "questions_in_corpus": len(corpus.questions),
        "articles_left_out": len(without),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "last_losses": learned.losses[-25:],
    }
    (given.output / "warm_start.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    _log.info("all %d steps done; the model is in %s", learned.steps, folder)
    return 0


def articles(data: Path) -> frozenset[str]:
    """Return the titles of the SQuAD articles whose passages wiki-multitask holds."""
    return frozenset(
        row["title"]
        for row in squad.lines(data / "wiki-multitask" / "passages.jsonl.gz")
        if row["id"].startswith("squad11-train-")
    )


if __name__ == "__main__":
    sys.exit(main())
