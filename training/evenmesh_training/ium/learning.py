"""Train a cross-encoder on feedback: the maximisation step of iterative utility maximisation.

Minimises the binary cross-entropy of usefulness under σ(W · ENC([task][model] query [SEP] title text))
(Salemi and Zamani, Iterative Utility Maximization, equations 4 and 6), or a loss of the passages of a
question together. Offline and online training both call :func:`learn`. The data of a step depend only on the
seed and the step's number, so that a run that was stopped or killed resumes from its checkpoint to the same
bits (with the same number of threads).
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, Final, Literal, get_args

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from evenmesh_core.errors import InvalidInput
from evenmesh_kit.compute import idle_memory
from evenmesh_lab.files.records import replace_file
from evenmesh_reranker.domain import Agent
from evenmesh_reranker.models import pairs, tokens
from evenmesh_reranker.ports import Row

Loss = Literal["pointwise", "listwise"]

_FORMAT: Final = 1
_ORDER, _UNKNOWN, _DROPOUT = range(3)
"""Purposes of random numbers; each has its own stream."""


@dataclass(frozen=True, slots=True)
class Example:
    """How useful one passage, given alone, was to an agent for a query.

    Attributes:
        query: the query.
        title: the passage's title; may be empty.
        text: the passage's text; may be empty.
        agent: the agent that judges; empty ids are unknown ones.
        usefulness: the agent's utility, [0, 1].
    """

    query: str
    title: str
    text: str
    agent: Agent
    usefulness: float


@dataclass(frozen=True, slots=True)
class Options:
    """Options of learning; the defaults are the paper's (section 5.1).

    Attributes:
        epochs: passes over the examples, [1, inf).
        batch_size: examples of an optimiser step, [1, inf).
        micro_batch: examples computed at once, [1, inf), or those of one question if it has more and the loss
            is ``listwise``; it bounds memory and affects only rounding.
        learning_rate: Adam's highest rate, (0, 1).
        agent_rate: the same of the embeddings of agent tokens, where these are trained, (0, 1); None: that of
            all. Adam changes a number by about the rate in a step, so at a rate that is right for trained
            layers, new tokens stay the same as each other for thousands of steps.
        warm_up: share of the steps in which the rate rises linearly, [0, 1].
        decay: share of the last steps in which it falls linearly to 0, [0, 1]; 0: it stays.
        max_length: longest pair, with agent tokens. Tokens, [16, inf).
        unknown_share: probability that both ids of an example, or of all of a question if the loss is
            ``listwise``, are withheld, independent in each epoch, [0, 1]. Offline training withholds 0.1,
            online training none.
        seed: of order, withheld ids and dropout, [0, 2^63).
        bf16: whether matrix products are computed in bfloat16.
        loss: ``pointwise`` is the paper's (:func:`pointwise_loss`). ``listwise`` compares the passages of a
            question for an agent (:func:`listwise_loss`): a batch then has as many whole questions as fit,
            one at least, and questions whose passages are all equally useful are left out.
        checkpoint_every: steps between two checkpoints, [1, inf).

    Raises:
        InvalidInput: a value is out of its range.
    """

    epochs: int = 2
    batch_size: int = 512
    micro_batch: int = 32
    learning_rate: float = 1e-5
    agent_rate: float | None = None
    warm_up: float = 0.05
    decay: float = 0.0
    max_length: int = 256
    unknown_share: float = 0.1
    seed: int = 0
    bf16: bool = False
    loss: Loss = "pointwise"
    checkpoint_every: int = 50

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "micro_batch", "checkpoint_every"):
            if getattr(self, name) < 1:
                raise InvalidInput(name, getattr(self, name), "[1, inf)")
        for name in ("warm_up", "decay", "unknown_share"):
            if not 0 <= getattr(self, name) <= 1:
                raise InvalidInput(name, getattr(self, name), "[0, 1]")
        if not 0 < self.learning_rate < 1:
            raise InvalidInput("learning_rate", self.learning_rate, "(0, 1)")
        if self.agent_rate is not None and not 0 < self.agent_rate < 1:
            raise InvalidInput("agent_rate", self.agent_rate, "(0, 1)")
        if self.max_length < 16:
            raise InvalidInput("max_length", self.max_length, "[16, inf)")
        if not 0 <= self.seed < 2**63:
            raise InvalidInput("seed", self.seed, "[0, 2^63)")
        if self.loss not in get_args(Loss):
            raise InvalidInput("loss", self.loss, " or ".join(get_args(Loss)))

    def units(self, examples: Sequence[Example]) -> list[list[Example]]:
        """Return the examples by what is drawn together: each alone, or by question and agent."""
        if self.loss == "pointwise":
            return [[one] for one in examples]
        questions: dict[tuple[str, Agent], list[Example]] = {}
        for one in examples:
            questions.setdefault((one.query, one.agent), []).append(one)
        return [one for one in questions.values() if len({example.usefulness for example in one}) > 1]

    def steps(self, examples: Sequence[Example]) -> int:
        """Return the number of optimiser steps for examples."""
        units = self.units(examples)
        return self.epochs * math.ceil(len(units) / self.units_of_a_step(units))

    def units_of_a_step(self, units: Sequence[Sequence[Example]]) -> int:
        """Return how many units an optimiser step has, [1, inf)."""
        return max(1, self.batch_size // max((len(one) for one in units), default=1))

    def factor(self, step: int, steps: int) -> float:
        """Return the factor on the learning rate at ``step`` of ``steps``, counted from 0, (0, 1]."""
        rising = math.ceil(self.warm_up * steps)
        falling = math.ceil(self.decay * steps)
        rise = (step + 1) / rising if step < rising else 1.0
        fall = (steps - step) / falling if step > steps - falling else 1.0
        return min(rise, fall)


@dataclass(frozen=True, slots=True)
class Learned:
    """The result of a training.

    Attributes:
        steps: optimiser steps done, with those before it was resumed.
        losses: mean loss of each step's units, before the step. Nats.
        complete: whether all steps are done; False if it was asked to stop.
    """

    steps: int
    losses: tuple[float, ...]
    complete: bool


StepCallback = Callable[[int, int, float], None]
"""Receives the number of steps done, the number of all steps, and the loss of the last one in nats."""


def learn(
    tokenizer: Any,
    model: Any,
    examples: Sequence[Example],
    options: Options,
    *,
    on_step: StepCallback | None = None,
    checkpoint: Path | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Learned:
    """Train the parameters of a model that require gradients, and leave it in evaluation mode.

    Args:
        tokenizer: a fast tokenizer of transformers, with agent tokens if the model reads agents.
        model: a sequence classifier of transformers with one label, or two of which the second is useful;
            bare or wrapped by peft. It stays on its device.
        examples: the examples.
        options: the options.
        on_step: called after each step.
        checkpoint: file of the state. Learning resumes from one with the same examples, options and initial
            model, and replaces any other. The file stays when all is done.
        stop: called after each step; True writes the checkpoint and ends early.

    Raises:
        InvalidInput: there is no example, or none of a question that the loss can use, a usefulness is not in
            [0, 1], or no parameter requires gradients.
        FloatingPointError: a loss is not finite; the checkpoint is of an earlier step.
        OSError: the checkpoint cannot be written.
    """
    parameters = {name: one for name, one in model.named_parameters() if one.requires_grad}
    _check(examples, options, parameters)
    steps = options.steps(examples)
    optimizer = torch.optim.Adam(parameters.values(), lr=options.learning_rate, fused=True)
    losses: list[float] = []
    identity = ""
    if checkpoint is not None:
        identity = _identity(tokenizer, model, examples, options)
        losses = _resume(checkpoint, identity, parameters, optimizer)
    epoch = _Epoch(examples, options)
    apply = _apply(tokenizer, model, optimizer, options)
    stopped = False
    model.train()
    try:
        with _plain_attention(model) if options.bf16 else nullcontext():
            while len(losses) < steps and not stopped:
                step = len(losses)
                for group in optimizer.param_groups:
                    group["lr"] = options.learning_rate * options.factor(step, steps)
                losses.append(_step(tokenizer, model, epoch.batch(step), options, step))
                if not math.isfinite(losses[-1]):
                    optimizer.zero_grad(set_to_none=True)
                    raise FloatingPointError(
                        f"the loss of step {step + 1} is not finite: lower learning_rate, or switch bf16 off"
                    )
                apply()
                if on_step is not None:
                    on_step(len(losses), steps, losses[-1])
                stopped = stop()
                due = stopped or len(losses) == steps or len(losses) % options.checkpoint_every == 0
                if due:
                    if checkpoint is not None:
                        _save(checkpoint, identity, parameters, optimizer, losses)
                    idle_memory.give_back_freed()
    finally:
        model.eval()
    return Learned(len(losses), tuple(losses), len(losses) == steps)


def usefulness_logits(logits: Tensor) -> Tensor:
    """Return the logit of "useful" of each row, shape [rows], float32: of one label, or the second of two.

    Its sigmoid is the probability that serving computes.
    """
    logits = logits.float().reshape(len(logits), -1)
    return logits[:, 0] if logits.shape[1] == 1 else logits[:, 1] - logits[:, 0]


def pointwise_loss(logits: Tensor, usefulness: Tensor) -> Tensor:
    """Return the mean binary cross-entropy of rows, a number. Nats.

    Value and gradient are finite for any finite logit.

    Args:
        logits: vector [rows].
        usefulness: vector [rows] in [0, 1].

    Source: Salemi and Zamani 2025, equation 4.
    """
    return functional.binary_cross_entropy_with_logits(logits, usefulness)


def listwise_loss(logits: Tensor, usefulness: Tensor) -> Tensor:
    """Return the cross-entropy of the passages of a question, a number. Nats.

    With p the softmax of the logits and u the usefulness it is −Σ (u / Σ u) log p: it asks which passage is
    the most useful, and nothing of how useful those of another question are.

    Args:
        logits: vector [passages].
        usefulness: vector [passages] in [0, 1], one above 0.

    Source: Cao et al. 2007 (ListNet, top one), with the target of Bruch et al. 2019.
    """
    return -(usefulness / usefulness.sum() * functional.log_softmax(logits, 0)).sum()


@contextmanager
def _plain_attention(model: Any) -> Iterator[None]:
    """Compute the attention of a model on the CPU as products and a softmax.

    The gradient of PyTorch's fused attention takes half of a step there in bfloat16.
    """
    usual = getattr(getattr(model, "config", None), "_attn_implementation", None)
    if usual != "sdpa" or next(model.parameters()).device.type != "cpu":
        yield
        return
    model.set_attn_implementation("eager")
    try:
        yield
    finally:
        model.set_attn_implementation(usual)


class _Epoch:
    """The batches of a run by step: each epoch has a random order and random withheld ids, from the seed."""

    def __init__(self, examples: Sequence[Example], options: Options) -> None:
        self._units = options.units(examples)
        self._options = options
        self._together = options.units_of_a_step(self._units)
        self._number = -1
        self._order = np.empty(0, dtype=np.int64)
        self._withheld = np.empty(0, dtype=bool)

    def batch(self, step: int) -> list[list[Example]]:
        options = self._options
        count = len(self._units)
        number, at = divmod(step, math.ceil(count / self._together))
        if number != self._number:
            self._number = number
            self._order = np.random.default_rng((options.seed, _ORDER, number)).permutation(count)
            drawn = np.random.default_rng((options.seed, _UNKNOWN, number)).random(count)
            self._withheld = drawn < options.unknown_share
        chosen = self._order[at * self._together : (at + 1) * self._together]
        return [
            [dataclasses.replace(one, agent=Agent()) for one in self._units[index]]
            if self._withheld[index]
            else self._units[index]
            for index in map(int, chosen)
        ]


def _step(
    tokenizer: Any, model: Any, batch: Sequence[Sequence[Example]], options: Options, step: int
) -> float:
    """Compute the gradients of a step, and return its loss."""
    device = next(model.parameters()).device
    loss_of = pointwise_loss if options.loss == "pointwise" else listwise_loss
    examples = [one for unit in batch for one in unit]
    rows = pairs.rows(
        tokenizer,
        [one.query for one in examples],
        [pairs.passage_text(one.title, one.text) for one in examples],
        [one.agent for one in examples],
        options.max_length,
    )
    total = 0.0
    drawn = np.random.SeedSequence((options.seed, _DROPOUT, step)).generate_state(1, np.uint64)
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(int(drawn[0] >> np.uint64(1)))
        for part in _parts(batch, rows, options.micro_batch):
            places = [at for unit in part for at in unit]
            features = pairs.padded(tokenizer, [rows[at] for at in places])
            wanted = torch.tensor([examples[at].usefulness for at in places], device=device)
            with torch.autocast(device.type, dtype=torch.bfloat16, enabled=options.bf16):
                logits = model(**{name: value.to(device) for name, value in features.items()}).logits
            sizes = [len(unit) for unit in part]
            given = zip(
                torch.split(usefulness_logits(logits), sizes), torch.split(wanted, sizes), strict=True
            )
            loss = torch.stack([loss_of(*one) for one in given]).sum() / len(batch)
            loss.backward()  # type: ignore[no-untyped-call]
            total += float(loss.detach())
    return total


def _apply(
    tokenizer: Any, model: Any, optimizer: torch.optim.Optimizer, options: Options
) -> Callable[[], None]:
    """Return what changes the parameters by their gradients, agent tokens at a rate of their own."""
    words: Tensor = model.get_input_embeddings().weight
    rows = tokenizer.convert_tokens_to_ids(list(tokens.present(tokenizer)))
    factor = 1.0 if options.agent_rate is None else options.agent_rate / options.learning_rate

    def apply() -> None:
        before = words.detach()[rows]
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if factor != 1.0 and words.requires_grad:
            # Adam takes no notice of the size of a gradient, so what it did is made larger.
            with torch.no_grad():
                words[rows] = before.lerp(words[rows], factor)

    return apply


def _parts(batch: Sequence[Sequence[Example]], rows: Sequence[Row], most: int) -> Iterator[list[list[int]]]:
    """Yield the units of a batch that are computed at once, each as the places of its rows.

    Sorted by length, so that little is padded; the sum over the batch is the same.
    """
    ends = list(accumulate(len(unit) for unit in batch))
    units = [list(range(end - len(unit), end)) for unit, end in zip(batch, ends, strict=True)]
    units.sort(key=lambda unit: -max(len(rows[at].ids) for at in unit))
    part: list[list[int]] = []
    for unit in units:
        if part and sum(map(len, part)) + len(unit) > most:
            yield part
            part = []
        part.append(unit)
    yield part


def _check(examples: Sequence[Example], options: Options, parameters: dict[str, Any]) -> None:
    if not examples:
        raise InvalidInput("examples", [], "at least one")
    for at, one in enumerate(examples):
        if not 0 <= one.usefulness <= 1:  # also rejects NaN
            raise InvalidInput(f"examples[{at}].usefulness", one.usefulness, "[0, 1]")
    if not options.units(examples):
        raise InvalidInput("examples", "all equal", "passages of a question that differ in usefulness")
    if not parameters:
        raise InvalidInput("model", "all frozen", "a parameter that requires gradients")


def _identity(tokenizer: Any, model: Any, examples: Iterable[Example], options: Options) -> str:
    """Return a digest of everything that decides the result, so not of how often it is saved."""
    fixed = dataclasses.asdict(options)
    del fixed["checkpoint_every"]
    digest = hashlib.sha256(json.dumps([_FORMAT, torch.get_num_threads(), fixed], sort_keys=True).encode())
    digest.update(json.dumps(sorted(tokenizer.get_added_vocab().items())).encode())
    for one in examples:
        fields = (one.query, one.title, one.text, one.agent.task_id, one.agent.model_id, one.usefulness)
        digest.update(json.dumps(fields).encode())
    for name, parameter in model.named_parameters():
        digest.update(f"{name} {tuple(parameter.shape)} {parameter.requires_grad}".encode())
        digest.update(parameter.detach().cpu().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _save(
    path: Path,
    identity: str,
    parameters: dict[str, Any],
    optimizer: torch.optim.Optimizer,
    losses: list[float],
) -> None:
    """Write the checkpoint; the one before stays until this one is complete."""
    state = {
        "identity": identity,
        "parameters": {name: one.detach() for name, one in parameters.items()},
        "optimizer": optimizer.state_dict(),
        "losses": losses,
    }
    replace_file(path, lambda target: torch.save(state, target))


def _resume(
    path: Path, identity: str, parameters: dict[str, Any], optimizer: torch.optim.Optimizer
) -> list[float]:
    """Restore parameters and optimiser, and return the losses so far.

    Return none for a checkpoint of another run, or one that was cut off when the machine went down.
    """
    if not path.is_file():
        return []
    try:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except (RuntimeError, EOFError, OSError, UnpicklingError):
        return []
    if state.get("identity") != identity:
        return []
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(state["parameters"][name])
    optimizer.load_state_dict(state["optimizer"])
    return list(state["losses"])
