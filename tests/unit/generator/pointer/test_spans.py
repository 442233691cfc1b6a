"""Answers are spans of one passage, in its own letters, or the abstention."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import evenmesh_models
from evenmesh_generator.domain import Augmentation, GenerationRequest, Passage
from evenmesh_generator.pointer.abstention import ABSTENTION
from evenmesh_generator.pointer.settings import PointerSettings
from evenmesh_generator.pointer.spans import SpanProcessor, Spans, SpanTranscript
from evenmesh_generator.pointer.tokenization import SEP, Block, PairTokenizer
from evenmesh_generator.runtime.prompts.pair_prompter import PairPrompter
from tests.support import tiny_models

END, ABSTAIN, START, JOINED, SIZE = 1, 2, 3, 9, 10


def allowed(texts: Sequence[Sequence[int]], written: Sequence[int]) -> list[int]:
    """The tokens that may follow; token 9 continues a word."""
    spans = Spans(
        [Block(tuple(one), frozenset(at for at, token in enumerate(one) if token == JOINED)) for one in texts]
    )
    processor = SpanProcessor(1, [spans], end=END, abstention=ABSTAIN)
    scores = processor(torch.tensor([[START, *written]]), torch.zeros(1, SIZE))
    return torch.isfinite(scores[0]).nonzero()[:, 0].tolist()


def test_a_span_begins_with_a_word_or_the_answer_abstains() -> None:
    assert allowed([[4, JOINED, 5]], []) == [ABSTAIN, 4, 5]
    assert allowed([], []) == [ABSTAIN]
    assert allowed([[]], []) == [ABSTAIN]


def test_the_next_token_follows_the_last_one_where_it_stands() -> None:
    texts = [[4, 5, 6], [4, 7]]
    assert allowed(texts, [4]) == [END, 5, 7]
    assert allowed(texts, [4, 5]) == [END, 6]
    assert allowed(texts, [4, 7]) == [END]  # the end of its text
    assert allowed(texts, [5]) == [END, 6]


def test_a_span_ends_where_a_word_ends() -> None:
    assert allowed([[4, JOINED, 5]], [4]) == [JOINED]
    assert allowed([[4, JOINED, 5]], [4, JOINED]) == [END, 5]
    assert allowed([[4, JOINED], [4, 5]], [4]) == [END, 5, JOINED]  # it does in the second text


def test_an_abstention_ends() -> None:
    assert allowed([[ABSTAIN, 4]], [ABSTAIN]) == [END]
    assert allowed([[ABSTAIN, 4]], []) == [ABSTAIN, 4]


def test_rows_of_beams_copy_from_their_own_texts() -> None:
    """Two questions with two beams each."""
    texts = [Spans([Block((4, 5))]), Spans([Block((6, 7))])]
    processor = SpanProcessor(1, texts, end=END, abstention=ABSTAIN)
    scores = processor(torch.tensor([[START, 4], [START, 5], [START, 6], [START, 7]]), torch.ones(4, SIZE))
    found = [torch.isfinite(row).nonzero()[:, 0].tolist() for row in scores]
    assert found == [[END, 5], [END], [END, 7], [END]]
    assert torch.equal(scores[torch.isfinite(scores)], torch.ones(6))


def test_a_name_of_code_is_one_word(tokenizer: PairTokenizer) -> None:
    text = tokenizer.text("it fails with READ_ONLY here")
    spans = Spans([*text.blocks(len(text.ids))])
    read, bar, only, here = tokenizer.ids("read_only here")
    assert read in spans.beginnings
    assert not {bar, only} & spans.beginnings
    assert spans.following(spans.begun(read)) == ({bar}, False)
    assert spans.following(spans.continued(spans.begun(read), bar)) == ({only}, False)
    places = spans.continued(spans.continued(spans.begun(read), bar), only)
    assert spans.following(places) == ({here}, True)
    said = SpanTranscript(["it fails with READ_ONLY here"], [text], [len(text.ids)], tokenizer)
    for token in (read, bar, only):
        said.push(token)
    said.finish()
    assert said.text == "READ_ONLY"


@pytest.mark.parametrize(
    ("text", "word", "cut"),
    [
        ("She received an LL.D. from Yale.", "LL.D", "LL"),
        ("He holds a Ph.B. of Ohio.", "Ph.B", "Ph"),
        ("The U.S. side won.", "U.S", "U"),
        ("It starts at 9 a.m. sharp.", "a.m", "a"),
        ("It cost 3.5 million.", "3.5", "3"),
        ("It has 7,000,000 members.", "7,000,000", "7,000"),
        ("It leaves at 12:30 daily.", "12:30", "12"),
    ],
)
def test_no_mark_within_a_number_or_an_abbreviation_cuts_it(
    tokenizer: PairTokenizer, text: str, word: str, cut: str
) -> None:
    read = tokenizer.text(text)
    spans = Spans([*read.blocks(len(read.ids))])
    first, *others = tokenizer.ids(word)
    assert first in spans.beginnings
    places = spans.begun(first)
    for token in others:
        following, ends = spans.following(places)
        assert (token, ends) == (following.pop(), False), cut
        places = spans.continued(places, token)
    assert spans.following(places)[1]
    # Nor does one begin within it.
    begin = text.index(word)
    assert not [at for at in spans._starts if begin < read.offsets[at][0] < begin + len(word)]


@pytest.mark.parametrize(
    ("text", "starts"),
    [
        ("It ended.How big is it?", ["How"]),  # two sentences without a blank
        ("Red, green: blue.", ["green", "blue"]),
        ("In 1963, 1989 and 2005.", ["1989"]),
        ("He was born in 1835.", ["1835"]),
    ],
)
def test_a_mark_between_words_joins_nothing(tokenizer: PairTokenizer, text: str, starts: list[str]) -> None:
    read = tokenizer.text(text)
    assert not read.joined
    assert {tokenizer.ids(one)[0] for one in starts} <= Spans([*read.blocks(len(read.ids))]).beginnings


words = st.lists(
    st.sampled_from(
        ["Paris", "paris", "PARIS", "is", "a", "city", "café", "re-use", "10.5", "a_b", "_", "not", "U.S."]
    )
)


@given(st.lists(words, max_size=3), st.randoms(use_true_random=False))
def test_whatever_a_model_wants_its_answer_stands_in_a_passage(
    tokenizer: PairTokenizer, passages: list[list[str]], random: Random
) -> None:
    written = [" ".join(one) for one in passages]
    texts = [tokenizer.text(one) for one in written]
    shown = [len(one.ids) - len(one.ids) // 3 for one in texts]
    spans = Spans([block for one, most in zip(texts, shown, strict=True) for block in one.blocks(most)])
    abstention = tokenizer.ids(ABSTENTION)[0]
    processor = SpanProcessor(1, [spans], end=SEP, abstention=abstention)
    said = SpanTranscript(written, texts, shown, tokenizer)
    ids, pieces = [START], []
    for _ in range(6):
        row = processor(torch.tensor([ids]), torch.zeros(1, 30522))[0]
        token = random.choice(torch.isfinite(row).nonzero()[:, 0].tolist())
        if token == SEP:
            break
        ids.append(token)
        pieces.append(said.push(token))
    pieces.append(said.finish())
    assert "".join(pieces) == said.text
    if said.place is None:
        assert said.text == ABSTENTION
    else:
        passage, begin, end = said.place
        assert said.text == written[passage][begin:end]
        assert said.text


def test_text_comes_when_all_places_agree_on_it(tokenizer: PairTokenizer) -> None:
    passages = ["the CITY of Paris", "The city of Lyon"]
    texts = [tokenizer.text(one) for one in passages]
    said = SpanTranscript(passages, texts, [len(one.ids) for one in texts], tokenizer)
    assert [said.push(token) for token in tokenizer.ids("the city of lyon")] == [
        "",
        "",
        "",
        "The city of Lyon",
    ]
    assert said.place == (1, 0, 16)


def test_a_text_is_copied_only_as_far_as_it_is_read(tokenizer: PairTokenizer) -> None:
    text = tokenizer.text("red green red blue")
    said = SpanTranscript(["red green red blue"], [text], [3], tokenizer)
    assert said.push(text.ids[2]) == "red"
    assert said.place == (0, 0, 3)
    assert said.push(text.ids[1]) == " green"


@pytest.mark.parametrize("augmentation", [None, Augmentation.IN_PROMPT])
@pytest.mark.parametrize("shift", range(4))
def test_a_word_that_is_cut_is_in_no_answer(
    tokenizer: PairTokenizer, augmentation: Augmentation | None, shift: int
) -> None:
    """Each word has several tokens; the title moves the cut through a word."""
    word, joined = "Rhododendron", "max_retry"
    settings = PointerSettings.read(evenmesh_models.reader())
    passages = tuple(Passage(f"{one}", "a" + " b" * shift, f"{one} " * 600) for one in (word, joined))
    request = GenerationRequest("q", passages, augmentation=augmentation)
    prompter = PairPrompter("reader", tokenizer, settings, limit=256)
    prompt = prompter.prompt(request)
    assert prompt.cut_passages
    for block, text in zip(prompt.spans or (), (word, joined), strict=False):
        size = len(tokenizer.ids(text))
        assert size > 1
        assert block.ids == tokenizer.ids(f"{text} " * (len(block.ids) // size))
        assert len(block.ids) > 200
    said = prompter.transcript(request, prompt)
    for token in tokenizer.ids(word):
        said.push(token)
    said.finish()
    assert said.text == word


@pytest.mark.parametrize("beams", [1, 4])
def test_the_reader_answers_with_spans(beams: int) -> None:
    """A model that nobody has trained: left alone, it writes what stands nowhere."""
    reader = tiny_models.pointer()
    passages = [
        ("Bridges", "The old bridge was built in 1888, of stone."),
        ("Towns", "A mill burned in 1901."),
    ]
    encodings = reader.encode_many([("When was the mill built?", passages), ("Why?", passages[:1])])
    for encoding, answer in zip(
        encodings, reader.answer_many(encodings, num_beams=beams, max_new_tokens=5), strict=True
    ):
        assert answer.text == ABSTENTION or any(answer.text in text for text in encoding.passages)
        assert answer.text
