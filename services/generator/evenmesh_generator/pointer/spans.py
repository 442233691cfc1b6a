"""Answers that are spans: copied whole from one passage, or the abstention."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Final

import torch
from torch import Tensor

from evenmesh_generator.domain import Span
from evenmesh_generator.pointer.abstention import ABSTENTION
from evenmesh_generator.pointer.confidence import Confidence
from evenmesh_generator.pointer.tokenization import Block, PairTokenizer, Text
from evenmesh_kit.compute.placement import upload

DECODING: Final = "spans-5"
"""What versions of models call this way of answering: weights alone do not say what a model answers.

2 reads Markdown as text, and long passages in several pieces; 3 reads each cell of a table with the head of
its column, and takes names of code whole; 4 keeps the marks on the last letter, and ends in no word that is
cut; 5 cuts no number and no abbreviation at a mark within it, such as 3.5 and LL.D.
"""

_NOWHERE: Final = -1


class Spans:
    """The texts that an answer may be copied from, as tokens, as far as the model reads them."""

    def __init__(self, texts: Sequence[Block]) -> None:
        self._tokens: list[int] = []
        self._joined: set[int] = set()
        for text in texts:
            self._joined.update(len(self._tokens) + at for at in text.joined)
            self._tokens += (*text.ids, _NOWHERE)

    @cached_property
    def _starts(self) -> list[int]:
        """Places where a word begins."""
        return [at for at, token in enumerate(self._tokens) if token != _NOWHERE and at not in self._joined]

    @property
    def beginnings(self) -> set[int]:
        """Tokens that a span may begin with."""
        return {self._tokens[at] for at in self._starts}

    def begun(self, token: int) -> list[int]:
        """Return the places of a first token."""
        return [at for at in self._starts if self._tokens[at] == token]

    def continued(self, places: Sequence[int], token: int) -> list[int]:
        """Return the places of a token after these."""
        return [at + 1 for at in places if self._tokens[at + 1] == token]

    def following(self, places: Sequence[int]) -> tuple[set[int], bool]:
        """Return the tokens that follow these places, and whether a word ends at one of them."""
        after = {self._tokens[at + 1] for at in places}
        return after - {_NOWHERE}, any(at + 1 not in self._joined for at in places)


class SpanProcessor:
    """Lets an answer go on as a span of a text, or be the abstention; everything else gets minus infinity.

    A span begins and ends with whole words. Each next token follows the last one where it stands, in one of
    the places where all of the span stands. An answer that begins with the abstention's first token is the
    abstention, and ends there.

    Args:
        prompt: tokens that the answer is written after.
        texts: for each row of the batch what it may copy; rows of the same beams stand together.
        end: token that ends an answer.
        abstention: first token of the abstention.
    """

    def __init__(self, prompt: int, texts: Sequence[Spans], *, end: int, abstention: int) -> None:
        self._prompt = prompt
        self._texts = texts
        self._end = end
        self._abstention = abstention
        self._places: list[dict[tuple[int, ...], list[int]]] = [{} for _ in texts]

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Return scores [B, V] of the rows' next tokens."""
        return self.process(input_ids.tolist(), scores)

    def process(self, ids: Sequence[Sequence[int]], scores: Tensor) -> Tensor:
        """Return scores [B, V] of the next tokens of rows that read ``ids`` so far."""
        processed = torch.full_like(scores, float("-inf"))
        for row, tokens in enumerate(self.allowed(ids)):
            places = upload(tokens, scores.device)
            processed[row, places] = scores[row, places]
        return processed

    def allowed(self, ids: Sequence[Sequence[int]]) -> list[list[int]]:
        """Return the tokens that may follow in each row, ascending and never none, after ``ids`` read so
        far.
        """
        return [
            sorted(self._allowed(row * len(self._texts) // len(ids), read[self._prompt :]))
            for row, read in enumerate(ids)
        ]

    def _allowed(self, number: int, written: Sequence[int]) -> set[int]:
        """Return the tokens that may follow in a row of this number's texts; never empty."""
        if not written:
            return self._texts[number].beginnings | {self._abstention}
        if written[0] == self._abstention or self._end in written:
            return {self._end}
        following, ends = self._texts[number].following(self._where(number, tuple(written)))
        return following | {self._end} if ends or not following else following

    def _where(self, number: int, written: tuple[int, ...]) -> list[int]:
        """Return the places of the last token of what is written, kept for the next step."""
        known = self._places[number]
        if written not in known:
            spans = self._texts[number]
            known[written] = (
                spans.begun(written[0])
                if len(written) == 1
                else spans.continued(self._where(number, written[:-1]), written[-1])
            )
        return known[written]


class SpanTranscript:
    """Turns the tokens of a span into the passage's own letters, and knows where it stands.

    Text comes as soon as all places agree on it: one passage may write in capitals what another does not.

    Args:
        passages: the texts.
        texts: their tokens and offsets.
        shown: how many tokens of each the model reads.
        confidence: calibration of the model; None if it has none.
    """

    ended = False

    def __init__(
        self,
        passages: Sequence[str],
        texts: Sequence[Text],
        shown: Sequence[int],
        tokenizer: PairTokenizer,
        confidence: Confidence | None = None,
    ) -> None:
        self._confidence = confidence
        self._passages = passages
        self._texts = texts
        self._shown = shown
        self._abstention = tokenizer.ids(ABSTENTION)[0]
        self._alive: list[tuple[int, int, int]] = []  # passage, first and last token
        self._written = 0
        self.text = ""

    @property
    def span(self) -> Span | None:
        """Return where the finished answer stands; None if it abstains."""
        return None if self.place is None else Span(*self.place)

    def confidence(self, log_probabilities: Sequence[float]) -> float | None:
        """Return the probability that the answer is right, in [0, 1]; None without a calibration."""
        if self._confidence is None or not log_probabilities:
            return None
        return self._confidence(log_probabilities, abstains=self.place is None)

    @property
    def place(self) -> tuple[int, int, int] | None:
        """Return the passage, and the characters that the answer begins and ends at; None if it abstains."""
        if not self._alive:
            return None
        passage, first, last = self._alive[0]
        offsets = self._texts[passage].offsets
        return passage, offsets[first][0], offsets[last][1]

    def push(self, token: int) -> str:
        """Return the text that is certain with one token more."""
        self._written += 1
        if self._written == 1 and token == self._abstention:
            return self._add(ABSTENTION)
        if self._written == 1:
            self._alive = [
                (number, at, at)
                for number, (text, shown) in enumerate(zip(self._texts, self._shown, strict=True))
                for at, found in enumerate(text.ids[:shown])
                if found == token and at not in text.bars and at not in text.joined
            ]
        else:
            self._alive = [
                (number, first, last + 1)
                for number, first, last in self._alive
                if last + 1 < self._shown[number]
                and self._texts[number].ids[last + 1] == token
                and last + 1 not in self._texts[number].breaks
            ]
        found = list(dict.fromkeys(self._letters(one) for one in self._alive))
        return self._add(_agreed(found)[len(self.text) :] if found else "")

    def finish(self) -> str:
        """Return the rest of the text."""
        return self._add(self._letters(self._alive[0])[len(self.text) :] if self._alive else "")

    def _letters(self, span: tuple[int, int, int]) -> str:
        number, first, last = span
        offsets = self._texts[number].offsets
        return self._passages[number][offsets[first][0] : offsets[last][1]]

    def _add(self, text: str) -> str:
        # What is said is a prefix of some place's letters; only the places that have it stay.
        self.text += text
        self._alive = [one for one in self._alive if self._letters(one).startswith(self.text)]
        return text


def _agreed(texts: Sequence[str]) -> str:
    """Return the longest beginning of all of these texts."""
    first, last = min(texts), max(texts)
    for at, (one, other) in enumerate(zip(first, last, strict=False)):
        if one != other:
            return first[:at]
    return first
