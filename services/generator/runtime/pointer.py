"""The bundled pointer model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from meshkit.errors import InvalidField, MeshError
from meshkit.lengths import by_length
from meshkit.models import ModelError, one_line
from services.generator.domain import (
    Answer,
    Augmentation,
    FinishReason,
    GenerationRequest,
    ModelDescription,
    Normalization,
    Passage,
)
from services.generator.pointer import reader as pointer
from services.generator.pointer.artifact import ArtifactError
from services.generator.pointer.base import BaseModelError
from services.generator.pointer.grounding import Grounder
from services.generator.pointer.reader import Encodings, PointerReader
from services.generator.pointer.tokenization import MAX_QUESTION
from services.generator.ports import Cancellation
from services.generator.runtime.computed import Emit
from services.generator.runtime.decoding import Decoder

_PASSAGES_BETWEEN_LOOKS = 64
"""Passages read or judged between two looks at whether somebody still waits."""

_BATCH_ROWS = 8
"""Answers written together. The beams of so many keep their scores of every step: 31 MB a step of 8 beams."""


class PointerModel:
    """A :class:`~services.generator.runtime.computed.ComputedModel` around the pointer reader.

    Each passage is read with the question, cut at its end where the pair is too long; answers come in the
    passages' own letters.

    Args:
        batch_tokens: most source tokens in a batch, beams counted. Tokens, [1, inf).
    """

    def __init__(
        self, name: str, version: str, reader: PointerReader, *, dtype: str, batch_tokens: int
    ) -> None:
        self._reader = reader
        self._batch_tokens = batch_tokens
        config = reader.model.config
        self._ends = (config.eos_token_id,)
        self._decoder = Decoder(reader.model, pad=config.pad_token_id, ends=self._ends)
        self._description = ModelDescription(
            name=name,
            version=version,
            engine="pointer",
            architecture=type(reader.model).__name__,
            device="cpu",
            dtype=dtype,
            scores_relevance=True,
            max_input_tokens=config.max_position_embeddings,
            max_new_tokens=config.max_position_embeddings - 1,
            augmentations=(Augmentation.FUSION_IN_DECODER, Augmentation.RETRIEVAL_FREE),
        )

    @classmethod
    def from_folder(
        cls, name: str, folder: Path | None, *, dtype: torch.dtype, batch_tokens: int
    ) -> PointerModel:
        """The model in ``folder``, or the bundled one.

        Raises:
            ModelError: a file is missing or damaged, or the base package is.
        """
        try:
            reader = PointerReader.from_folder(folder, bfloat16=dtype is torch.bfloat16)
        except (ArtifactError, BaseModelError) as error:
            raise ModelError(one_line(error)) from None
        version = str(reader.model.config.weights_sha256)[:16]
        return cls(name, version, reader, dtype=str(dtype).removeprefix("torch."), batch_tokens=batch_tokens)

    def describe(self) -> ModelDescription:
        """What the model is and can do."""
        return self._description

    def stream(self, request: GenerationRequest, cancel: Cancellation, emit: Emit) -> Answer:
        """Writes one answer; greedy and sampled text as it comes, beam search's at the end.

        Raises:
            InvalidField: the question is too long, or a template is asked for.
            Cancelled, DeadlineExceeded: nobody waits any more.
        """
        self._check(request)
        cancel.check()
        (encodings,) = self._encode([request], cancel)
        decoding = request.decoding
        if decoding.num_beams > 1:
            (answer,) = self._search([request], [encodings], cancel)
            if answer.text:
                emit(answer.text)
            return answer
        if decoding.temperature > 0:
            return self._sample(request, encodings, cancel, emit)
        pieces: list[str] = []
        for part in self._reader.answer_stream(
            encodings, max_new_tokens=decoding.max_new_tokens, cancelled=lambda: cancel.cancelled
        ):
            if isinstance(part, pointer.Token):
                if part.text:
                    pieces.append(part.text)
                    emit(part.text)
                continue
            cancel.check()
            return _answer(encodings, "".join(pieces), part.log_prob, part.tokens, part.finish)
        raise RuntimeError("the reader ended without an answer")

    def batch(self, requests: Sequence[GenerationRequest], cancel: Cancellation) -> list[Answer | MeshError]:
        """One answer or one error per request; like decodings and lengths run together."""
        outcomes: list[Answer | MeshError | None] = [None] * len(requests)
        groups: dict[tuple[int, int], list[int]] = {}
        for index, request in enumerate(requests):
            try:
                self._check(request)
            except MeshError as error:
                outcomes[index] = error
                continue
            groups.setdefault((request.decoding.num_beams, request.decoding.max_new_tokens), []).append(index)
        for (num_beams, max_new_tokens), indices in groups.items():
            encodings = dict(
                zip(indices, self._encode([requests[index] for index in indices], cancel), strict=True)
            )
            drawn = [index for index in indices if requests[index].decoding.temperature > 0]
            for index in drawn:
                outcomes[index] = self._sample(requests[index], encodings[index], cancel, lambda _: None)
            searched = [index for index in indices if requests[index].decoding.temperature == 0]
            costs = [(encodings[index].tokens + max_new_tokens) * num_beams for index in searched]
            for chosen in by_length(costs, self._batch_tokens, size=_BATCH_ROWS):
                rows = [searched[at] for at in chosen]
                answers = self._search(
                    [requests[index] for index in rows], [encodings[index] for index in rows], cancel
                )
                for index, answer in zip(rows, answers, strict=True):
                    outcomes[index] = answer
        return [outcome for outcome in outcomes if outcome is not None]

    def relevance(
        self, question: str, passages: Sequence[Passage], normalization: Normalization, cancel: Cancellation
    ) -> list[float]:
        """P(True) per passage from the relevance head.

        Raises:
            InvalidField: the question is too long.
            Cancelled, DeadlineExceeded: nobody waits any more.
        """
        self._check_question(question)
        order = sorted(range(len(passages)), key=lambda at: len(passages[at].text))
        probabilities = [0.0] * len(passages)
        for begin in range(0, len(order), _PASSAGES_BETWEEN_LOOKS):
            cancel.check()
            chosen = order[begin : begin + _PASSAGES_BETWEEN_LOOKS]
            values = self._reader.relevance(
                question,
                [(passages[at].title, passages[at].text) for at in chosen],
                over_vocabulary=normalization is Normalization.VOCABULARY,
            )
            for at, value in zip(chosen, values, strict=True):
                probabilities[at] = min(max(value, 0.0), 1.0)
        return probabilities

    def _check(self, request: GenerationRequest) -> None:
        if request.template:
            raise InvalidField(
                "template",
                f"{self._description.name} reads passages in a form of its own and takes no template",
            )
        self._check_question(request.question)

    def _check_question(self, question: str) -> None:
        length = len(self._reader.tokenizer.ids(question))
        if length > MAX_QUESTION:
            raise InvalidField(
                "question", f"has {length} tokens; {self._description.name} reads at most {MAX_QUESTION}"
            )

    def _encode(self, requests: Sequence[GenerationRequest], cancel: Cancellation) -> list[Encodings]:
        encoded: list[Encodings] = []
        waiting: list[tuple[str, list[tuple[str, str]]]] = []
        passages = 0
        for request in requests:
            waiting.append(
                (request.question, [(passage.title, passage.text) for passage in request.passages])
            )
            passages += len(request.passages)
            if passages >= _PASSAGES_BETWEEN_LOOKS:
                cancel.check()
                encoded += self._reader.encode_many(waiting)
                waiting, passages = [], 0
        cancel.check()
        return encoded + (self._reader.encode_many(waiting) if waiting else [])

    def _search(
        self, requests: Sequence[GenerationRequest], encodings: Sequence[Encodings], cancel: Cancellation
    ) -> list[Answer]:
        """Greedy answers or those of beam search."""
        decoding = requests[0].decoding
        answers = self._reader.answer_many(
            encodings,
            num_beams=decoding.num_beams,
            max_new_tokens=decoding.max_new_tokens,
            cancelled=lambda: cancel.cancelled,
        )
        cancel.check()
        return [
            _answer(encoding, answer.text, answer.log_prob, answer.tokens, answer.finish)
            for encoding, answer in zip(encodings, answers, strict=True)
        ]

    def _sample(
        self, request: GenerationRequest, encodings: Encodings, cancel: Cancellation, emit: Emit
    ) -> Answer:
        grounder = Grounder(encodings.passages, encodings.texts, self._reader.tokenizer)

        def on_token(token: int) -> None:
            if piece := grounder.feed(token):
                emit(piece)

        source = encodings.source()
        inputs = {
            "encoder_outputs": source,
            "attention_mask": source["source_mask"].long(),
            "decoder_input_ids": torch.tensor([[self._reader.model.config.answer_token_id]]),
        }
        (written,) = self._decoder.write(inputs, [request.decoding], [request.question], cancel, on_token)
        finish = pointer.Finish.STOP if written.ended else pointer.Finish.LENGTH
        return _answer(encodings, grounder.text, written.log_probability, written.tokens, finish)


def _answer(
    encodings: Encodings, text: str, log_probability: float, tokens: int, finish: pointer.Finish
) -> Answer:
    return Answer(
        text=text,
        finish_reason=FinishReason.STOP if finish is pointer.Finish.STOP else FinishReason.LENGTH,
        prompt_tokens=encodings.tokens,
        completion_tokens=tokens,
        log_probability=min(log_probability, 0.0),
    )
