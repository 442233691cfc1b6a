"""Answers questions from passages, and judges passages, with the pointer model."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional
from transformers import LogitsProcessorList

import evenmesh_models
from evenmesh_generator.pointer import artifact
from evenmesh_generator.pointer.configuration import PointerConfig
from evenmesh_generator.pointer.modeling import PointerForConditionalGeneration, PointerSource
from evenmesh_generator.pointer.settings import PointerSettings
from evenmesh_generator.pointer.spans import SpanProcessor, Spans, SpanTranscript
from evenmesh_generator.pointer.tokenization import (
    LONGEST_PAIR,
    SEP,
    Block,
    Pair,
    PairTokenizer,
    Text,
    pad_pairs,
    pair,
)


@dataclass(frozen=True)
class Encodings:
    """A question with its passages, each encoded once: enough to judge them, to answer, and to cite.

    ``rows``: the source [1, length, …] of every pair, without padding; a question without passages
    has one row. ``shown``: how many tokens of each passage's text its pair has, of words that it has whole.
    """

    question: str
    passages: tuple[str, ...]
    texts: tuple[Text, ...]
    rows: tuple[PointerSource, ...]
    shown: tuple[int, ...]

    @property
    def tokens(self) -> int:
        """Return the source tokens of all pairs together."""
        return sum(int(row.source_ids.shape[1]) for row in self.rows)

    def source(self) -> PointerSource:
        """Return all pairs side by side, [1, tokens, …]: what the decoder reads to answer."""
        return PointerSource(
            **{name: torch.cat([row[name] for row in self.rows], 1) for name in self.rows[0]}
        )

    def pick(self, indices: Sequence[int]) -> "Encodings":
        """Return the same question with the passages ``indices``, in that order, without encoding again."""
        return Encodings(
            self.question,
            tuple(self.passages[i] for i in indices),
            tuple(self.texts[i] for i in indices),
            tuple(self.rows[i] for i in indices),
            tuple(self.shown[i] for i in indices),
        )

    def spans(self) -> list[Block]:
        """Return the tokens that an answer may be copied from, block by block."""
        return [
            block for text, shown in zip(self.texts, self.shown, strict=True) for block in text.blocks(shown)
        ]


@dataclass(frozen=True)
class ReaderAnswer:
    """A finished answer.

    ``text``: in the passages' own letters; ``log_prob``: sum over the tokens, end included, nats;
    ``tokens``: generated, end included; ``ended``: whether the model ended it, rather than ran out of length;
    ``log_probs``: of each token, nats.
    """

    text: str
    log_prob: float
    tokens: int
    ended: bool
    log_probs: tuple[float, ...] = ()


class PointerReader:
    """The model with its tokenizer; stateless between calls, so one may serve many threads.

    Args:
        limit: longest (question, passage) pair in tokens, the passage cut at its end; at most 512.
        pairs_per_batch: pairs encoded in one go.
        bfloat16: compute in bfloat16; faster where the processor has it, much slower where not.
    """

    def __init__(
        self,
        model: PointerForConditionalGeneration,
        tokenizer: PairTokenizer,
        *,
        limit: int = LONGEST_PAIR,
        pairs_per_batch: int = 16,
        bfloat16: bool = False,
    ) -> None:
        self.model = model
        self.model.train(False)
        self.tokenizer = tokenizer
        self._limit = limit
        self._pairs_per_batch = pairs_per_batch
        self._bfloat16 = bfloat16

    @classmethod
    def from_folder(cls, folder: Path | None = None, *, bfloat16: bool = False) -> "PointerReader":
        """Load the reader of the model in ``folder``, or the bundled one; errors as of
        :func:`artifact.load`.
        """
        return cls(artifact.load(folder), PairTokenizer(evenmesh_models.minilm()), bfloat16=bfloat16)

    @property
    def settings(self) -> PointerSettings:
        """Return what the model's configuration states."""
        return cast(PointerConfig, self.model.config).settings()

    def encode(self, question: str, passages: Sequence[tuple[str, str]]) -> Encodings:
        """Encode ``passages`` (title, text), each with the question; without passages the question alone."""
        return self.encode_many([(question, passages)])[0]

    def encode_many(self, requests: Sequence[tuple[str, Sequence[tuple[str, str]]]]) -> list[Encodings]:
        """Encode several questions, each with its passages; pairs of similar length share a batch."""
        laid_out: list[Pair] = []
        texts: list[tuple[Text, ...]] = []
        for question, passages in requests:
            question_ids = self.tokenizer.question(question)
            texts.append(tuple(self.tokenizer.text(text) for _, text in passages))
            if not passages:
                laid_out.append(pair(question_ids, (), (), limit=self._limit))
            for (title, _), body in zip(passages, texts[-1], strict=True):
                laid_out.append(
                    pair(question_ids, self.tokenizer.title_ids(title), body.ids, limit=self._limit)
                )
        rows = self._encode_pairs(laid_out)
        encodings = []
        at = 0
        for (question, passages), bodies in zip(requests, texts, strict=True):
            count = max(1, len(passages))
            own = tuple(rows[at : at + count])
            shown = tuple(
                text.whole(len(one.ids) - 1 - one.text_start)
                for text, one in zip(bodies, laid_out[at : at + len(passages)], strict=True)
            )
            at += count
            encodings.append(Encodings(question, tuple(text for _, text in passages), bodies, own, shown))
        return encodings

    def answer(self, encodings: Encodings, *, num_beams: int = 1, max_new_tokens: int = 48) -> ReaderAnswer:
        """Return the greedy answer, or the best of ``num_beams`` beams."""
        return self.answer_many([encodings], num_beams=num_beams, max_new_tokens=max_new_tokens)[0]

    def answer_many(
        self, encodings: Sequence[Encodings], *, num_beams: int = 1, max_new_tokens: int = 48
    ) -> list[ReaderAnswer]:
        """Answer several questions in one batch; see :meth:`answer`."""
        model = cast("Any", self.model)  # generate() is typed for a protocol that models do not declare
        source = stack([e.source() for e in encodings])
        copying = SpanProcessor(
            1,
            [Spans(e.spans()) for e in encodings],
            end=SEP,
            abstention=self.model.config.abstention_token_id,
        )
        with torch.inference_mode(), self._precision():
            output = model.generate(
                # a copy: generate() repeats the tensors in place for the beams
                encoder_outputs=PointerSource(**source),
                attention_mask=source.source_mask.long(),
                max_new_tokens=max_new_tokens,
                num_beams=num_beams,
                do_sample=False,
                logits_processor=LogitsProcessorList([copying]),
                return_dict_in_generate=True,
                output_scores=True,
            )
            # the scores are log-probabilities already: the model returns them normalised
            log_probs = model.compute_transition_scores(
                output.sequences, output.scores, getattr(output, "beam_indices", None)
            )
        answers = []
        for encoding, tokens, values in zip(
            encodings, output.sequences.tolist(), log_probs.tolist(), strict=True
        ):
            generated = tokens[1:]
            ended = SEP in generated
            kept = generated[: generated.index(SEP)] if ended else generated
            count = len(kept) + ended
            said = SpanTranscript(encoding.passages, encoding.texts, encoding.shown, self.tokenizer)
            for token in kept:
                said.push(token)
            said.finish()
            own = tuple(values[:count])
            answers.append(ReaderAnswer(said.text, sum(own), count, ended, own))
        return answers

    def verdicts(self, encodings: Sequence[Encodings]) -> list[list[float]]:
        """Return P(true) of "this passage answers the question" for every passage of every question.

        Values lie in [0, 1], normalised over true and false.
        """
        config = self.model.config
        rows = [row for e in encodings for row in e.rows[: len(e.passages)]]
        values = [0.0] * len(rows)
        for picked in self._batches([int(row.source_ids.shape[1]) for row in rows]):
            starts = torch.full((len(picked), 1), config.relevance_token_id)
            with torch.inference_mode(), self._precision():
                logits = self.model(
                    decoder_input_ids=starts, encoder_outputs=stack([rows[i] for i in picked])
                ).logits[:, 0]
            true, false = logits[:, config.true_token_id], logits[:, config.false_token_id]
            probabilities = functional.sigmoid(true - false)
            for row, value in zip(picked, probabilities.tolist(), strict=True):
                values[row] = value
        left = iter(values)
        return [[next(left) for _ in e.passages] for e in encodings]

    def margins(self, encodings: Sequence[Encodings]) -> list[float]:
        """Return by how many nats abstaining is more probable than any other first token.

        Greedily, it abstains where this is above 0.
        """
        config = self.model.config
        starts = torch.full((len(encodings), 1), config.answer_token_id)
        with torch.inference_mode(), self._precision():
            logits = self.model(
                decoder_input_ids=starts, encoder_outputs=stack([e.source() for e in encodings])
            ).logits[:, 0]
            abstains = logits[:, config.abstention_token_id].clone()
            logits[:, config.abstention_token_id] = float("-inf")
            margins = abstains - logits.amax(1)
        return [float(value) for value in margins]

    def _precision(self) -> AbstractContextManager[object]:
        return torch.autocast("cpu", torch.bfloat16, enabled=self._bfloat16)

    def _batches(self, lengths: Sequence[int]) -> list[list[int]]:
        """Return indices in batches of similar length."""
        order = sorted(range(len(lengths)), key=lambda i: lengths[i])
        size = self._pairs_per_batch
        return [order[at : at + size] for at in range(0, len(order), size)]

    def _encode_pairs(self, pairs: Sequence[Pair]) -> list[PointerSource]:
        """Return the source [1, length, …] of every pair, without padding."""
        encoded: dict[int, PointerSource] = {}
        for rows in self._batches([len(p.ids) for p in pairs]):
            with torch.inference_mode(), self._precision():
                source = self.model.encoder(*pad_pairs([pairs[i] for i in rows]))
            for at, row in enumerate(rows):
                length = len(pairs[row].ids)
                encoded[row] = PointerSource(
                    **{name: values[at : at + 1, :length] for name, values in source.items()}
                )
        return [encoded[row] for row in range(len(pairs))]


def stack(sources: Sequence[PointerSource]) -> PointerSource:
    """Return one batch of several sources, padded at the end."""
    if len(sources) == 1:
        return sources[0]
    length = max(source.source_ids.shape[1] for source in sources)

    def padded(values: Tensor) -> Tensor:
        room = length - values.shape[1]
        return functional.pad(values, (0, 0, 0, room) if values.dim() == 3 else (0, room))

    return PointerSource(**{name: torch.cat([padded(s[name]) for s in sources]) for name in sources[0]})
