"""Saying that the passages do not answer: how readily, and in which words."""

import math

import pytest
import torch

from evenmesh_generator.pointer.abstention import ABSTENTION, choose_bias, for_development, is_abstention
from evenmesh_generator.pointer.mixture import apply_abstention_bias
from evenmesh_generator.pointer.reader import PointerReader
from evenmesh_generator.pointer.spans import SpanTranscript
from evenmesh_generator.pointer.tokenization import PairTokenizer
from tests.support import tiny_models
from tests.support.tiny_models import SENTENCES


@pytest.fixture
def reader() -> PointerReader:
    return tiny_models.pointer()


def test_it_is_known_by_its_words() -> None:
    assert is_abstention(ABSTENTION)
    assert is_abstention(" Not in the  passages. ")
    assert not is_abstention("in the passages")
    assert not is_abstention("")


def test_the_bias_abstains_most_often_within_the_precision() -> None:
    margins = [3.0, 2.0, 1.0, 0.0, -1.0, -2.0]
    right = [True, True, False, True, False, False]
    # precision of the first k: 1, 1, 2/3, 3/4, 3/5, 1/2
    assert choose_bias(margins, right, precision=0.9) == -(2.0 + 1.0) / 2
    assert choose_bias(margins, right, precision=0.7) == -(0.0 + -1.0) / 2
    assert choose_bias(margins, right, precision=0.5) == -(-2.0 - 3.0) / 2  # below all: always abstains
    for bias in (choose_bias(margins, right, precision=p) for p in (0.9, 0.7, 0.5)):
        said = [one for margin, one in zip(margins, right, strict=True) if margin + bias > 0]
        assert sum(said) / len(said) >= 0.5


def test_no_bias_parts_equal_margins() -> None:
    assert choose_bias([1.0, 1.0, 0.0], [True, False, True], precision=0.5) == -(0.0 - 1.0) / 2
    with pytest.raises(ValueError, match=r"0\.667"):
        choose_bias([1.0, 1.0, 0.0], [True, False, True], precision=0.9)


def test_half_of_the_questions_are_for_development() -> None:
    share = sum(for_development(f"q{n}") for n in range(1000)) / 1000
    assert 0.45 < share < 0.55  # three standard deviations are 0.047


@pytest.mark.parametrize("bias", [-2.0, 0.7])
def test_leaning_shifts_the_odds_of_abstaining_where_an_answer_begins(bias: float) -> None:
    model = tiny_models.pointer().model
    model.config.abstention_bias = bias
    config = model.config
    generator = torch.Generator().manual_seed(0)
    log_probs = torch.randn((3, config.vocab_size), generator=generator).log_softmax(-1)
    tokens = torch.tensor([config.answer_token_id, config.relevance_token_id, 7])
    found = apply_abstention_bias(
        log_probs, tokens, bias=bias, start=config.answer_token_id, abstention=config.abstention_token_id
    )
    torch.testing.assert_close(found[1:], log_probs[1:])
    torch.testing.assert_close(found.exp().sum(-1), torch.ones(3))
    said = config.abstention_token_id
    odds = [row[0, said] - torch.log1p(-row[0, said].exp()) for row in (found, log_probs)]
    assert float(odds[0] - odds[1]) == pytest.approx(bias, abs=1e-4)
    others = [token for token in range(config.vocab_size) if token != said]
    shifts = (found - log_probs)[0, others]
    torch.testing.assert_close(shifts, shifts[:1].expand_as(shifts))


def test_a_great_bias_abstains_and_a_small_one_never_does(reader: PointerReader) -> None:
    encodings = reader.encode(SENTENCES[0], [("", SENTENCES[1])])
    margin = reader.margins([encodings])[0]
    for bias, first in ((-margin + 0.01, True), (-margin - 0.01, False)):
        reader.model.config.abstention_bias = bias
        assert reader.margins([encodings])[0] == pytest.approx(margin + bias, abs=1e-4)
        assert is_abstention(reader.answer(encodings, max_new_tokens=1).text) is first
        assert math.isfinite(reader.answer(encodings, max_new_tokens=4).log_prob)


def test_an_abstention_stands_for_itself(reader: PointerReader, tokenizer: PairTokenizer) -> None:
    text = tokenizer.text("NOT only In that case. THE Passages were long.")
    said = SpanTranscript(
        ["NOT only In that case. THE Passages were long."], [text], [len(text.ids)], tokenizer
    )
    assert said.push(tokenizer.ids(ABSTENTION)[0]) == ABSTENTION
    assert said.finish() == ""
    assert (said.text, said.place) == (ABSTENTION, None)
    assert reader.tokenizer.ids(ABSTENTION)[0] == reader.model.config.abstention_token_id
