"""Train the pointer model: encode each passage once; answers, verdicts and abstention learn from it.

The five kinds differ here in which passages are encoded together. An example's gold passage teaches its
answer alone as well as among the others, a passage without the answer teaches to abstain, and every passage
is a relevance pair; all from one encoding, which is nearly all of the cost.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn

from evenmesh_generator.pointer import artifact
from evenmesh_generator.pointer.abstention import ABSTENTION
from evenmesh_generator.pointer.mixture import Mixture
from evenmesh_generator.pointer.modeling import PointerForConditionalGeneration, PointerSource
from evenmesh_generator.pointer.reader import Encodings, PointerReader, stack
from evenmesh_generator.pointer.tokenization import (
    LONGEST_PAIR,
    PAD,
    SEP,
    Pair,
    PairTokenizer,
    pad_pairs,
    pair,
    room,
)
from evenmesh_training.rankrag.data.examples import Example, Form, Kind, Shown
from evenmesh_training.rankrag.learners.learner import Batch, Prediction
from evenmesh_training.rankrag.recipe import RecipeError, Stage

PAIRS_TOGETHER: Final = 24
"""Pairs of similar length encoded in one go: longer runs gain nothing here and pad more."""

ALONE: Final = 0.5
"""Weight of answering from the gold passage alone, where it is also answered among others."""

ABSTAIN: Final = 0.25
"""Weight of abstaining on a passage without the answer, where the example itself is answerable."""

POINTWISE: Final = 0.5
"""Weight of the verdicts' mean negative log-likelihood."""

LISTWISE: Final = 0.5
"""Weight of choosing the gold passage among those shown with it."""

_AFTER_ANSWER = 16
_PREDICTED_TOGETHER = 16

Wanted = tuple[tuple[int, ...], tuple[int, ...], float]
"""Pairs that are read together, the tokens to write after them, and their weight in the loss."""


@dataclass(frozen=True)
class Decoding(Batch):
    """Answers decoded from the same number of passages.

    ``rows`` [B, P] pairs side by side; ``inputs`` and ``targets`` [B, T], padded with 0 and -1;
    ``weights`` [B].
    """

    rows: Tensor
    inputs: Tensor
    targets: Tensor
    weights: Tensor


@dataclass(frozen=True)
class PointerBatch(Batch):
    """Pairs in runs of similar length, and what is decoded from them.

    ``runs``: ids, mask and types [n, L] each; pairs are numbered through all runs. ``verdicts`` [N]: 1 true,
    0 false, -1 not judged. ``groups`` [N]: example that a pair belongs to. ``shares`` [N]: its weight in its
    example's verdicts.
    """

    runs: tuple[tuple[Tensor, Tensor, Tensor], ...]
    decodings: tuple[Decoding, ...]
    verdicts: Tensor
    groups: Tensor
    shares: Tensor
    examples: int


class PointerObjective(nn.Module):
    """The losses of a batch; every mean is over examples."""

    def __init__(self, model: PointerForConditionalGeneration) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: PointerBatch) -> dict[str, Tensor]:
        """Return ``answer``, ``verdict``, ``choice`` in nats per example, and ``loss``, their weighted
        sum.
        """
        source = stack([self.model.encoder(*run) for run in batch.runs])
        cross = self.model.decoder.project(source.last_hidden_state)
        nothing = source.last_hidden_state.new_zeros(())
        answer = sum((self._answers(one, source, cross) for one in batch.decodings), nothing)
        parts = {"answer": answer, **self._ranking(batch, source, cross)}
        parts = {name: value / batch.examples for name, value in parts.items()}
        parts["loss"] = parts["answer"] + POINTWISE * parts["verdict"] + LISTWISE * parts["choice"]
        return parts

    def _ranking(self, batch: PointerBatch, source: PointerSource, cross: Any) -> dict[str, Tensor]:
        """Return the sums over examples of ``verdict`` and ``choice``."""
        if not bool((batch.verdicts >= 0).any()):
            nothing = source.last_hidden_state.new_zeros(())
            return {"verdict": nothing, "choice": nothing}
        scores, log_true, log_false = self._verdicts(source, cross)
        chosen = torch.where(batch.verdicts == 1, log_true, log_false)
        return {"verdict": -(chosen * batch.shares).sum(), "choice": self._choice(batch, scores)}

    def _answers(self, one: Decoding, source: PointerSource, cross: Any) -> Tensor:
        """Return the sum over decodings of the weighted mean negative log-likelihood of a token."""
        picked, cache = self.model.select(source, cross, one.rows)
        log_probs = self.model.sequence_log_probs(one.inputs, one.targets, picked, cache)
        known = one.targets >= 0
        row = known.nonzero(as_tuple=True)[0]
        weights = (one.weights / known.sum(1))[row]
        return -(log_probs * weights).sum()

    def _verdicts(self, source: PointerSource, cross: Any) -> tuple[Tensor, Tensor, Tensor]:
        """Return the log-odds [N] of true, and log P of true and of false."""
        model, config = self.model, self.model.config
        picked, cache = model.select(source, cross, None)
        starts = torch.full_like(source.source_ids[:, :1], config.relevance_token_id)
        states = model.decoder(starts, model.encoder.embeddings, picked, cache)
        copy_probs, gate_logit = model.head.copy(states, starts, picked)
        vocab = model.head.vocab_logits(states[:, 0], model.get_input_embeddings().weight)
        mixture = Mixture(vocab, copy_probs[:, 0], gate_logit[:, 0])
        true, false = (
            mixture.target_log_probs(picked.source_ids, torch.full_like(starts[:, 0], token))
            for token in (config.true_token_id, config.false_token_id)
        )
        return true - false, true, false

    def _choice(self, batch: PointerBatch, scores: Tensor) -> Tensor:
        """Return the sum over examples of the loss of choosing their gold pairs among those judged."""
        total = torch.zeros((), device=scores.device)
        for group in range(batch.examples):
            member = (batch.groups == group) & (batch.verdicts >= 0)
            gold = member & (batch.verdicts == 1)
            if not bool(gold.any()) or bool((gold == member).all()):
                continue
            # the gold passages of a question of several steps are each to be found among the others
            others = scores[member & ~gold].logsumexp(0)
            right = scores[gold]
            total = total + (torch.logaddexp(right, others) - right).mean()
        return total


class PointerLearner:
    """The pointer model of a folder (or the bundled one) as something to train.

    Args:
        frozen_layers: lowest encoder layers that stay the base model's.

    Raises:
        ArtifactError, BaseModelError: the model cannot be loaded.
    """

    def __init__(
        self, model: PointerForConditionalGeneration, tokenizer: PairTokenizer, stage: Stage
    ) -> None:
        self.model = model
        # chosen for other weights; what is trained now says itself how often it abstains
        model.config.abstention_bias = 0.0
        self.module = PointerObjective(model)
        self.module.train()
        self._tokenizer = tokenizer
        self._limit = min(stage.max_length, model.config.max_position_embeddings)
        self._max_target = stage.max_target
        self._kinds_apart = stage.kinds_apart
        self._tokens: dict[str, np.ndarray[tuple[int], np.dtype[np.uint16]]] = {}
        self._passages: dict[str, np.ndarray[tuple[int], np.dtype[np.uint16]]] = {}
        self._abstention = (*tokenizer.ids(ABSTENTION), SEP)

    def check(self, examples: Sequence[Example]) -> None:
        """Check that every one of ``examples`` shows passages.

        Raises:
            RecipeError: one does not.
        """
        talks = sorted({example.source for example in examples if not example.shown})
        if talks:
            raise RecipeError(
                f"the pointer model reads questions and passages, no conversations: take {', '.join(talks)} "
                "(kind sft) out of the recipe, or train another model"
            )

    def parameter_groups(self, stage: Stage) -> list[dict[str, Any]]:
        """Return the encoder at the stage's rate, decoder and head at the head's."""
        encoder = [p for p in self.model.encoder.layers.parameters() if p.requires_grad]
        known = {id(p) for p in encoder}
        rest = [p for p in self.model.parameters() if p.requires_grad and id(p) not in known]
        head_rate = stage.head_learning_rate or stage.learning_rate
        return [{"params": encoder, "lr": stage.learning_rate}, {"params": rest, "lr": head_rate}]

    def describe(self) -> Mapping[str, Any]:
        """Return sizes, base and limits."""
        config = self.model.config
        return {
            "model": config.model_type,
            "base": config.base_sha256,
            "encoder_layers": config.encoder_layers,
            "decoder_layers": config.decoder_layers,
            "frozen_layers": config.frozen_layers,
        }

    def cost(self, example: Example) -> int:
        """Return the tokens of the longest pair."""
        asked = len(self._question_ids(example.question))
        longest = max(len(self._read_ids(one.passage.text)) for one in example.shown)
        return int(min(self._limit, 4 + asked + longest))

    def collate(self, examples: Sequence[Example]) -> PointerBatch:
        """Return pairs and decodings of ``examples``."""
        pairs: list[Pair] = []
        verdicts: list[int] = []
        groups: list[int] = []
        wanted: list[Wanted] = []
        for number, example in enumerate(examples):
            first = len(pairs)
            judged = example.kind.ranks or not self._kinds_apart
            for one in example.shown:
                pairs.append(self._pair(example, one))
                verdicts.append(_verdict(one) if judged else -1)
                groups.append(number)
            wanted += [
                (tuple(first + at for at in places), self._target(text), weight)
                for places, text, weight in decodings(example, kind_alone=self._kinds_apart)
            ]
        return self._batch(pairs, verdicts, groups, wanted, len(examples))

    def _batch(
        self,
        pairs: Sequence[Pair],
        verdicts: Sequence[int],
        groups: Sequence[int],
        wanted: Sequence[Wanted],
        examples: int,
    ) -> PointerBatch:
        """Return a batch whose runs hold pairs of similar length."""
        judged = np.bincount(np.asarray(groups)[np.asarray(verdicts) >= 0], minlength=examples)
        shares = [1.0 / judged[g] if v >= 0 else 0.0 for g, v in zip(groups, verdicts, strict=True)]
        order = sorted(range(len(pairs)), key=lambda at: len(pairs[at].ids))
        place = {pair_number: at for at, pair_number in enumerate(order)}
        return PointerBatch(
            tuple(
                pad_pairs([pairs[at] for at in order[begin : begin + PAIRS_TOGETHER]])
                for begin in range(0, len(order), PAIRS_TOGETHER)
            ),
            self._decodings(
                [(tuple(place[row] for row in rows), target, weight) for rows, target, weight in wanted]
            ),
            torch.tensor([verdicts[at] for at in order]),
            torch.tensor([groups[at] for at in order]),
            torch.tensor([shares[at] for at in order], dtype=torch.float32),
            examples,
        )

    def predict(self, examples: Sequence[Example]) -> list[Prediction]:
        """Return greedy answers from all passages shown, or P(true) of the one passage to judge."""
        reader = PointerReader(self.model, self._tokenizer, limit=self._read_limit)
        order = sorted(range(len(examples)), key=lambda at: self.cost(examples[at]) * len(examples[at].shown))
        out: dict[int, Prediction] = {}
        for begin in range(0, len(order), _PREDICTED_TOGETHER):
            chosen = order[begin : begin + _PREDICTED_TOGETHER]
            encodings = dict(
                zip(
                    chosen,
                    reader.encode_many([(examples[at].question, self._read(examples[at])) for at in chosen]),
                    strict=True,
                )
            )
            ranked = {at: one for at, one in encodings.items() if examples[at].kind is Kind.CONTEXT_RANKING}
            answered = {at: one for at, one in encodings.items() if at not in ranked}
            if ranked:
                found = reader.verdicts(list(ranked.values()))
                out |= {at: Prediction(probability=one[0]) for at, one in zip(ranked, found, strict=True)}
            if answered:
                copied = [self._copied(examples[at], one) for at, one in answered.items()]
                answers = reader.answer_many(copied, max_new_tokens=self._max_target)
                out |= {at: Prediction(text=one.text) for at, one in zip(answered, answers, strict=True)}
        self.module.train()
        return [out[at] for at in range(len(examples))]

    @property
    def _read_limit(self) -> int:
        """Return the longest pair, in tokens, of predictions."""
        return LONGEST_PAIR

    def _read(self, example: Example) -> list[tuple[str, str]]:
        """Return the titles and texts that predictions are made from."""
        return [(one.passage.title, one.passage.text) for one in example.shown]

    def _copied(self, example: Example, encodings: Encodings) -> Encodings:
        """Return what the answer to an example may be copied from."""
        return encodings

    def save(self, folder: Path) -> None:
        """Write the shipped form: trained tensors in bfloat16, and the configuration."""
        artifact.save(self.model, folder)

    def _question_ids(self, text: str) -> np.ndarray[tuple[int], np.dtype[np.uint16]]:
        found = self._tokens.get(text)
        if found is None:
            found = np.asarray(self._tokenizer.question(text), dtype=np.uint16)
            self._tokens[text] = found
        return found

    def _read_ids(self, text: str) -> np.ndarray[tuple[int], np.dtype[np.uint16]]:
        """Return the tokens of a passage, its Markdown read as text."""
        found = self._passages.get(text)
        if found is None:
            found = np.asarray(self._tokenizer.text(text).ids, dtype=np.uint16)
            self._passages[text] = found
        return found

    def _target(self, text: str) -> tuple[int, ...]:
        if text == ABSTENTION:
            return self._abstention
        tokens = self._tokenizer.ids(text)
        return tokens[: self._max_target] if len(tokens) >= self._max_target else (*tokens, SEP)

    def _pair(self, example: Example, one: Shown) -> Pair:
        """Return the pair; the text window starts at the first token, or later so that it holds the
        answer.
        """
        question = self._question_ids(example.question).tolist()
        title = self._tokenizer.title_ids(one.passage.title)
        text = self._read_ids(one.passage.text).tolist()
        start = 0
        space = room(question, title, self._limit)
        if one.gold and len(text) > space:
            at = one.passage.text.find(example.answer)
            if at >= 0:
                offsets = self._tokenizer.text(one.passage.text).offsets
                last = sum(begin < at + len(example.answer) for begin, _ in offsets)
                start = min(max(0, last + _AFTER_ANSWER - space), len(text) - space)
        return pair(question, title, text, limit=self._limit, start=start)

    def _decodings(self, wanted: Sequence[Wanted]) -> tuple[Decoding, ...]:
        by_count: dict[int, list[Wanted]] = {}
        for one in wanted:
            by_count.setdefault(len(one[0]), []).append(one)
        found = []
        for _, several in sorted(by_count.items()):
            steps = max(len(target) for _, target, _ in several)
            inputs = torch.full((len(several), steps), PAD)
            targets = torch.full((len(several), steps), -1)
            for row, (_, target, _) in enumerate(several):
                inputs[row, : len(target)] = torch.tensor((self.model.config.answer_token_id, *target[:-1]))
                targets[row, : len(target)] = torch.tensor(target)
            rows = torch.tensor([rows for rows, _, _ in several])
            found.append(Decoding(rows, inputs, targets, torch.tensor([weight for _, _, weight in several])))
        return tuple(found)


def decodings(example: Example, *, kind_alone: bool = False) -> list[tuple[tuple[int, ...], str, float]]:
    """Return what is decoded for ``example``: places of the passages read, the text, and its weight.

    Args:
        example: to learn from.
        kind_alone: decode what its kind asks alone.
    """
    everything = tuple(range(len(example.shown)))
    gold = [at for at, one in enumerate(example.shown) if one.gold]
    useless = [at for at, one in enumerate(example.shown) if one.irrelevant]
    answers = example.kind.reads
    found: list[tuple[tuple[int, ...], str, float]] = []
    if answers:
        found.append((everything, example.answer, 1.0))
    # A verdict on a claim is asked for in words that the pointer model does not read.
    if kind_alone or example.form is Form.CLAIM:
        return found
    if len(gold) == 1 and not (answers and len(everything) == 1):
        found.append(((gold[0],), example.answers[0], ALONE))
    if useless and not (answers and not gold and len(everything) == 1):
        found.append(((useless[0],), ABSTENTION, ABSTAIN))
    return found


def _verdict(one: Shown) -> int:
    """Return what a passage's verdict shall be: 1 true, 0 false, -1 if nobody knows."""
    return 1 if one.gold else 0 if one.irrelevant and not one.altered else -1
