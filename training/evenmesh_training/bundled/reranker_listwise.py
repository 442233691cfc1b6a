"""``python -m evenmesh_training.bundled.reranker_listwise``: train the bundled cross-encoder on lists.

Three losses, summed:

- listwise softmax cross-entropy (Cao et al. 2007, ListNet's top-one form) of the standardized score of the
  first stage plus :data:`WEIGHT` times the logit: what the model adds to what is known already;
- the same of the logit alone, and binary cross-entropy, so that its sigmoid is a probability;
- Kullback-Leibler divergence from the softmax of the dense encoder's cosines, where nothing else says what is
  relevant, and a little everywhere.

The same command resumes a run that was stopped or killed.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import os
import signal
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
import transformers
from torch import Tensor
from torch.nn import functional

from evenmesh_kit.compute.placement import multiplies_bfloat16
from evenmesh_models import fingerprint
from evenmesh_reranker.bundled import assemble
from evenmesh_reranker.domain import Agent
from evenmesh_reranker.models import pairs
from evenmesh_training.bundled import reranker_lists
from evenmesh_training.bundled.reranker_lists import LABELLED, UNLABELLED, CandidateList
from evenmesh_training.ium import start

_log = logging.getLogger("evenmesh.reranker.listwise")

WEIGHT: Final = 0.7
"""Of the logit beside the standardized score of the first stage."""

SHARPNESS: Final = 20.0
"""Of the teacher: its cosines times this are logits, as all-MiniLM-L6-v2 was trained with."""

ALONE: Final = 0.5
"""Weight of the listwise loss of the logit alone."""

CALIBRATION: Final = 0.5
"""Weight of the binary cross-entropy."""

DISTILLATION: Final = 0.3
"""Weight of the divergence from the teacher on labelled lists; 1 on others."""

_WARM_UP: Final = 0.05
"""Share of the steps in which the learning rate grows; it falls in the others, to 0."""

_AVERAGED: Final = 0.998
"""Share of the average of the weights that a step keeps."""


def main() -> int:
    """Train, and write ``OUTPUT/model``."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--data", type=Path, required=True, help="folder of the data sets")
    add("--output", type=Path, required=True, help="folder for lists, checkpoint, log and model")
    add("--start", help="folder of the model to begin with, or fresh; the bundled one without")
    add("--steps", type=int, default=4000, help="optimiser steps")
    add("--lists", type=int, default=4, help="lists of a step")
    add("--rate", type=float, default=2e-5, help="learning rate at its top")
    add("--max-length", type=int, default=144, help="longest pair. Tokens")
    add("--threads", type=int, default=1)
    add("--seed", type=int, default=23)
    sources = (*LABELLED, *UNLABELLED)
    add("--without", nargs="+", default=[], choices=sources, help="data sets to leave out")
    given = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    torch.set_num_threads(given.threads)
    given.output.mkdir(parents=True, exist_ok=True)
    kept = given.output / f"lists-{given.seed}.jsonl"
    if not kept.is_file():
        made = list(reranker_lists.build(given.data, seed=given.seed, log=_log.info))
        reranker_lists.write(made, kept)
    lists = [one for one in reranker_lists.read(kept) if one.source not in given.without]
    _log.info("%d lists", len(lists))
    if given.start == start.FRESH:
        tokenizer, model = start.fresh(seed=given.seed)
    else:
        tokenizer, model = start.load(Path(given.start or assemble(given.output / "start")))
    tokenizer.model_max_length = given.max_length
    stopping: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda got, _: stopping.append(got))
    run = _Run(tokenizer, model, lists, given)
    while run.step < given.steps and not stopping:
        run.go_on()
        if run.step % 200 == 0:
            run.save()
    run.save()
    if run.step < given.steps:
        _log.info("stopped after %d steps; the same command resumes", run.step)
        return 130
    run.finish()
    return 0


def loss_of(logits: Tensor, of: CandidateList) -> Tensor:
    """Return the loss of a list.

    Args:
        logits: of its candidates, float32, shape [candidates].
        of: the list.
    """
    teacher = (torch.tensor(of.cosines) * SHARPNESS).softmax(0)
    distilled = functional.kl_div(logits.log_softmax(0), teacher, reduction="sum")
    if of.relevant is None:
        return distilled
    relevant = torch.tensor(of.relevant, dtype=torch.float32)
    target = relevant / relevant.sum()
    fused = torch.tensor(of.first) + WEIGHT * logits
    listwise = -(target * fused.log_softmax(0)).sum()
    alone = -(target * logits.log_softmax(0)).sum()
    calibrated = functional.binary_cross_entropy_with_logits(logits, relevant)
    return listwise + ALONE * alone + CALIBRATION * calibrated + DISTILLATION * distilled


class _Run:
    """A training with its checkpoint; each epoch has its own order, from the seed."""

    def __init__(
        self, tokenizer: Any, model: Any, lists: Sequence[CandidateList], given: argparse.Namespace
    ) -> None:
        self._tokenizer = tokenizer
        self._model = model
        self._lists = lists
        self._given = given
        self._path = given.output / "listwise.pt"
        self._narrow = multiplies_bfloat16(torch.device("cpu"))
        self.step = 0
        self.losses: list[float] = []
        model.requires_grad_(True)
        model.bert.embeddings.requires_grad_(False)
        for layer in model.bert.encoder.layer[: start.FROZEN_LAYERS]:
            layer.requires_grad_(False)
        self._trained = {name: one for name, one in model.named_parameters() if one.requires_grad}
        self._average = {name: one.detach().clone() for name, one in self._trained.items()}
        self._optimizer = torch.optim.AdamW(self._trained.values(), lr=given.rate, weight_decay=0.01)
        model.train()
        if self._path.is_file():
            self._load()
        self._began = time.monotonic()

    def go_on(self) -> None:
        """Do a step."""
        chosen = self._chosen()
        for group in self._optimizer.param_groups:
            group["lr"] = self._given.rate * self._factor()
        rows = pairs.rows(
            self._tokenizer,
            [one.query for one in chosen for _ in one.texts],
            [pairs.passage_text(*both) for one in chosen for both in zip(one.titles, one.texts, strict=True)],
            [Agent()] * sum(len(one.texts) for one in chosen),
            self._given.max_length,
        )
        features = pairs.padded(self._tokenizer, rows)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self._narrow):
            logits = self._model(**features).logits
        parts = logits.float().reshape(-1).split([len(one.texts) for one in chosen])
        losses = [loss_of(part, one) for part, one in zip(parts, chosen, strict=True)]
        loss = torch.stack(losses).mean()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self._trained.values(), 1.0)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        self.step += 1
        self.losses.append(float(loss.detach()))
        if not math.isfinite(self.losses[-1]):
            raise FloatingPointError(f"the loss of step {self.step} is not finite: lower --rate")
        keep = min(_AVERAGED, self.step / (self.step + 10))
        with torch.no_grad():
            for name, one in self._trained.items():
                self._average[name].lerp_(one, 1 - keep)
        if self.step % 50 == 0:
            took = (time.monotonic() - self._began) / 50
            self._began = time.monotonic()
            _log.info("step %d, loss %.4f, %.2f s a step", self.step, float(np.mean(self.losses[-50:])), took)

    def save(self) -> None:
        """Write the checkpoint; the one before stays until this one is complete."""
        beside = self._path.with_suffix(f".{os.getpid()}")
        state = {
            "trained": {name: one.detach() for name, one in self._trained.items()},
            "average": self._average,
            "optimizer": self._optimizer.state_dict(),
            "losses": self.losses,
        }
        torch.save(state, beside)
        beside.replace(self._path)

    def finish(self) -> None:
        """Write the model of averaged weights, and the record."""
        with torch.no_grad():
            for name, one in self._trained.items():
                one.copy_(self._average[name])
        self._model.train(mode=False)
        folder = self._given.output / "model"
        self._model.save_pretrained(folder)
        self._tokenizer.save_pretrained(folder)
        counts: dict[str, int] = {}
        for one in self._lists:
            counts[one.source] = counts.get(one.source, 0) + 1
        record = {
            "ended_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "steps": self.step,
            "lists_of_a_step": self._given.lists,
            "candidates": reranker_lists.SIZE,
            "learning_rate": self._given.rate,
            "max_length": self._given.max_length,
            "seed": self._given.seed,
            "lists": {name: counts.get(name, 0) for name in (*LABELLED, *UNLABELLED)},
            "weights_sha256": fingerprint(folder / "model.safetensors"),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "last_loss": float(np.mean(self.losses[-200:])),
        }
        (self._given.output / "listwise.json").write_text(
            json.dumps(record, indent=1) + "\n", encoding="utf-8"
        )
        _log.info("all %d steps done; the model is in %s", self.step, folder)

    def _chosen(self) -> list[CandidateList]:
        per_epoch = len(self._lists) // self._given.lists
        epoch, at = divmod(self.step, per_epoch)
        order = np.random.default_rng((self._given.seed, epoch)).permutation(len(self._lists))
        return [self._lists[one] for one in order[at * self._given.lists : (at + 1) * self._given.lists]]

    def _factor(self) -> float:
        done = self.step / int(self._given.steps)
        return min(done / _WARM_UP, (1 - done) / (1 - _WARM_UP))

    def _load(self) -> None:
        state: dict[str, Any] = torch.load(self._path, map_location="cpu", weights_only=True)
        with torch.no_grad():
            for name, one in self._trained.items():
                one.copy_(state["trained"][name])
        self._average = state["average"]
        self._optimizer.load_state_dict(state["optimizer"])
        self.losses = state["losses"]
        self.step = len(self.losses)
        _log.info("resumed at step %d", self.step)


if __name__ == "__main__":
    sys.exit(main())
