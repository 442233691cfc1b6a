"""Examples hold their answers, negatives do not, and one seed decides everything."""

from collections import Counter
from dataclasses import replace

import pytest
import torch

from services.generator.pointer.examples import (
    MAX_ANSWER,
    Example,
    ExampleSource,
    Passage,
    Question,
    Size,
    collate,
)
from services.generator.pointer.tokenization import CLS, SEP, Pair, PairTokenizer

FILLER = "the river runs past an old mill and a quiet field of barley. " * 12
TOWNS = ["Aldham", "Brixworth", "Corfe", "Dunster", "Ewelme", "Frome", "Glossop", "Hexham"]


def corpus() -> tuple[list[Passage], list[Question]]:
    """Two articles; each passage tells one town's founding year, at another place in a long text."""
    passages, questions = [], []
    for number, town in enumerate(TOWNS):
        cut = 60 * number
        fact = f"The town of {town} was founded in {1100 + 7 * number}. "
        title = "Northern towns" if number < 4 else "Southern towns"
        passages.append(Passage(f"p{number}", title, FILLER[:cut] + fact + FILLER[cut:]))
        questions.append(
            Question(f"q{number}", f"When was {town} founded?", (str(1100 + 7 * number),), f"p{number}")
        )
    return passages, questions


def source(
    tokenizer: PairTokenizer,
    *,
    seed: int = 3,
    limit: int = 60,
    negative_rate: float = 0.4,
    fused_rate: float = 0.5,
) -> ExampleSource:
    passages, questions = corpus()
    size = Size(limit, negative_rate)
    return ExampleSource(passages, questions, tokenizer, seed=seed, size=size, fused_rate=fused_rate)


def contains(ids: tuple[int, ...], part: tuple[int, ...]) -> bool:
    return any(ids[at : at + len(part)] == part for at in range(len(ids) - len(part) + 1))


def test_the_window_of_a_long_passage_holds_the_answer(tokenizer: PairTokenizer) -> None:
    made = source(tokenizer)
    starts = set()
    for epoch in range(5):
        for index, town in enumerate(TOWNS):
            example = made.example(index, epoch)
            assert len(example.gold.ids) == 60
            assert contains(example.gold.ids[example.gold.text_start :], example.answer[:-1])
            assert contains(example.gold.ids[: example.gold.boundary], tokenizer.ids(town))
            assert example.answer == (*tokenizer.ids(str(1100 + 7 * index)), SEP)
            starts.add(example.gold.text_offset)
    assert len(starts) > 10  # the windows move


def test_a_negative_is_of_the_same_article_and_lacks_the_answer(tokenizer: PairTokenizer) -> None:
    made = source(tokenizer, negative_rate=1.0)
    titles = tokenizer.title_ids("Northern towns"), tokenizer.title_ids("Southern towns")
    for epoch in range(3):
        for index in range(len(TOWNS)):
            example = made.example(index, epoch)
            assert example.negative is not None
            begin = example.negative.boundary
            assert example.negative.ids[begin:].index(tokenizer.ids("towns")[0]) == 1
            assert contains(example.negative.ids, titles[index // 4])
            assert not contains(example.negative.ids, example.answer[:-1])
            assert example.negative.ids[:begin] == example.gold.ids[:begin]  # the same question


def test_the_negative_most_like_the_question_is_taken(tokenizer: PairTokenizer) -> None:
    passages = [
        Passage("gold", "Mills", "The mill at Corfe was built by Anne in 1610."),
        Passage("near", "Mills", "The mill at Dunster was built by John."),
        Passage("far", "Mills", "Barley grows well on chalk."),
        Passage("leak", "Mills", "The mill at Corfe was built, and built again, by Anne."),
    ]
    questions = [Question("q", "Who built the mill at Corfe?", ("Anne",), "gold")]
    made = ExampleSource(passages, questions, tokenizer, seed=0, size=Size(160, 1.0))
    near = tokenizer.ids("The mill at Dunster was built by John.")
    for epoch in range(8):
        negative = made.example(0, epoch).negative
        assert negative is not None
        assert negative.ids[negative.text_start : -1] == near


def test_without_another_passage_there_is_no_negative(tokenizer: PairTokenizer) -> None:
    passages, questions = corpus()
    made = ExampleSource(passages[:1], questions[:1], tokenizer, seed=0, size=Size(160, 1.0), fused_rate=1.0)
    example = made.example(0, 0)
    assert example.negative is None
    assert not example.fused


def test_every_question_comes_once_per_epoch(tokenizer: PairTokenizer) -> None:
    made = source(tokenizer)
    for epoch in range(3):
        batches = made.epoch(epoch, 3, bucket=2)
        assert Counter(i for batch in batches for i in batch) == Counter(range(len(TOWNS)))
    assert made.epoch(0, 3) != made.epoch(1, 3)


def test_one_seed_makes_the_same_examples_and_another_others(tokenizer: PairTokenizer) -> None:
    first, again = source(tokenizer), source(tokenizer)
    other = source(tokenizer, seed=4)
    forwards = [first.example(i, 1) for i in range(8)]
    backwards = [again.example(i, 1) for i in reversed(range(8))][::-1]
    assert forwards == backwards
    assert first.epoch(1, 2) == again.epoch(1, 2)
    assert forwards != [other.example(i, 1) for i in range(8)]
    assert forwards != [first.example(i, 2) for i in range(8)]


def test_the_rates_are_met(tokenizer: PairTokenizer) -> None:
    made = source(tokenizer, negative_rate=0.25, fused_rate=0.5)
    drawn = [made.example(i, epoch) for epoch in range(60) for i in range(8)]
    with_negative = [e for e in drawn if e.negative]
    assert 0.18 < len(with_negative) / len(drawn) < 0.32  # 480 draws: four standard deviations are 0.08
    assert 0.3 < sum(e.fused for e in with_negative) / len(with_negative) < 0.7
    assert not any(e.fused for e in drawn if not e.negative)


def test_a_smaller_size_cuts_examples_but_keeps_the_order(tokenizer: PairTokenizer) -> None:
    made = source(tokenizer, negative_rate=1.0)
    small = [made.example(i, 0, Size(40, 0.0)) for i in range(8)]
    assert [len(e.gold.ids) for e in small] == [40] * 8
    assert not any(e.negative for e in small)
    assert all(contains(e.gold.ids[e.gold.text_start :], e.answer[:-1]) for e in small)
    assert made.epoch(0, 3) == source(tokenizer, negative_rate=1.0).epoch(0, 3)


def test_an_answer_that_is_not_in_its_passage_is_an_error(tokenizer: PairTokenizer) -> None:
    passages, questions = corpus()
    wrong = [replace(questions[0], answers=("1999",))]
    with pytest.raises(ValueError, match="q0"):
        ExampleSource(passages, wrong, tokenizer, seed=0)


def test_a_very_long_answer_is_cut_and_does_not_end(tokenizer: PairTokenizer) -> None:
    text = "one two three four five " * 20
    made = ExampleSource(
        [Passage("p", "", text)],
        [Question("q", "What?", (text.strip(),), "p")],
        tokenizer,
        seed=0,
        size=Size(200, 0.0),
    )
    answer = made.example(0, 0).answer
    assert len(answer) == MAX_ANSWER
    assert SEP not in answer


def make(*ids: int) -> Pair:
    return Pair(ids, 2, 2, 0)


def test_collate_lays_out_single_and_fused_answers() -> None:
    examples = [
        Example(make(CLS, 1, 2, SEP), make(CLS, 1, 3, 4, SEP), (7, SEP), fused=True, swapped=True),
        Example(make(CLS, 5, SEP), None, (8, 9, SEP), fused=False, swapped=False),
        Example(make(CLS, 6, SEP), make(CLS, 6, 7, SEP), (6, SEP), fused=True, swapped=False),
    ]
    batch = collate(examples, answer_token=1)
    assert batch.questions == 3
    assert batch.input_ids.shape == (5, 5)  # three gold pairs, then the two negatives
    assert batch.input_ids[3].tolist() == [CLS, 1, 3, 4, SEP]
    assert batch.attention_mask.sum(1).tolist() == [4, 3, 3, 5, 4]
    assert batch.token_type_ids[0].tolist() == [0, 0, 1, 1, 0]
    assert batch.single.tolist() == [1]
    assert batch.fused.tolist() == [[3, 0], [2, 4]]
    assert batch.targets.tolist() == [[8, 9, SEP], [7, SEP, -1], [6, SEP, -1]]
    assert batch.decoder_ids.tolist() == [[1, 8, 9], [1, 7, 0], [1, 6, 0]]
    assert torch.equal(batch.targets[:, 0], batch.decoder_ids[:, 1])
