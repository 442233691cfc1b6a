"""What chooses among few tokens selects as if it read the whole vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from evenmesh_generator.domain import Decoding
from evenmesh_generator.pointer.spans import SpanProcessor, Spans
from evenmesh_generator.pointer.tokenization import Block
from evenmesh_generator.runtime.decoding.rules import Processor, Rules, only_choice
from evenmesh_generator.runtime.decoding.selection import select_tokens
from evenmesh_generator.runtime.decoding.sequences import BeamSequences, SingleSequence

START, END, ABSTAIN, WORDS = 1, 2, 3, 40
CANNOT_WIN = -1.0e8


class _Ids:
    """A transcript that says nothing."""

    ended = False

    def push(self, token: int) -> str:
        return ""

    def finish(self) -> str:
        return ""


def _processors(texts: Sequence[Sequence[int]], *, whole: bool) -> list[Processor]:
    processor = SpanProcessor(1, [Spans([Block(tuple(one)) for one in texts])], end=END, abstention=ABSTAIN)
    if not whole:
        return [processor]

    def of_all(ids: Tensor, scores: Tensor) -> Tensor:
        return processor(ids, scores)

    return [of_all]  # nobody sees that it chooses


def _sequence(
    texts: Sequence[Sequence[int]], decoding: Decoding, *, whole: bool
) -> SingleSequence | BeamSequences:
    rules = Rules(pad=0, ends=[END])
    rest = (rules, _processors(texts, whole=whole), [START], _Ids(), lambda _: None)
    if decoding.num_beams > 1:
        return BeamSequences(decoding, *rest)
    return SingleSequence(decoding, "q", *rest)


def _state(one: SingleSequence | BeamSequences) -> object:
    """What an answer has come to, without beams that cannot win: any token does for them."""
    running: object = one.tokens
    if isinstance(one, BeamSequences):
        beams = zip(one.search.scores, one.ids, strict=True)
        running = [(score, ids) for score, ids in beams if score > CANNOT_WIN]
    return one.done, one.written, one.log_probabilities, running


@given(seed=st.integers(0, 2**32 - 1), beams=st.lists(st.integers(1, 5), min_size=1, max_size=4))
def test_it_selects_what_reading_all_selects(seed: int, beams: list[int]) -> None:
    drawn, generator = Random(seed), torch.Generator().manual_seed(seed)
    kinds = []
    for whole in (True, False):
        drawn.seed(seed)
        texts = [
            [[drawn.randrange(4, WORDS) for _ in range(drawn.randint(0, 9))] for _ in range(2)] for _ in beams
        ]
        decodings = [Decoding(max_new_tokens=6, num_beams=count) for count in beams]
        kinds.append(
            {
                at: _sequence(text, how, whole=whole)
                for at, (text, how) in enumerate(zip(texts, decodings, strict=True))
            }
        )
    at, rows = 0, {}
    for owner, count in enumerate(beams):
        rows[owner] = list(range(at, at + count))
        at += count
    order = list(rows)
    drawn.shuffle(order)  # requests leave and join: their rows are in any order
    while order:
        scores = torch.randn(at, WORDS, generator=generator).log_softmax(-1)
        for sequences in kinds:
            select_tokens(
                scores,
                {owner: rows[owner] for owner in order},
                {owner: sequences[owner] for owner in order},
                normalised=True,
            )
        for owner in order:
            assert _state(kinds[0][owner]) == _state(kinds[1][owner])
        order = [owner for owner in order if not kinds[0][owner].done]


def test_only_one_choice_can_be_relied_on() -> None:
    choosing = _processors([[5, 6]], whole=False)
    assert only_choice(choosing) is choosing[0]
    assert only_choice([*choosing, *_processors([[5]], whole=True)]) is None
    assert only_choice(_processors([[5]], whole=True)) is None
    assert only_choice(None) is None
