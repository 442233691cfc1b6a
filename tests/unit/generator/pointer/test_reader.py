"""The reader batches and ranks without changing what the model says."""

from collections.abc import Callable

import pytest
import torch

from evenmesh_generator.pointer.abstention import ABSTENTION
from evenmesh_generator.pointer.modeling import PointerForConditionalGeneration
from evenmesh_generator.pointer.reader import PointerReader
from evenmesh_generator.pointer.tokenization import PairTokenizer, pair

Build = Callable[..., PointerForConditionalGeneration]

QUESTIONS = ["When was the mill at Corfe built?", "Who keeps bees?", "What runs past the mill?"]
PASSAGES = [
    ("Corfe", "The mill at Corfe was built in 1610 by Anne Oldacre, who also kept bees."),
    ("Dunster", "Dunster's mill is younger."),
    ("", "The river Frome runs past three mills, a barley field and, after heavy rain, through the road."),
]


@pytest.fixture
def reader(build: Build, tokenizer: PairTokenizer) -> PointerReader:
    model = build(
        seed=2,
        vocab_size=30522,
        bos_token_id=101,
        eos_token_id=102,
        true_token_id=2995,
        false_token_id=6270,
    )
    with torch.no_grad():
        model.head.gate.bias.fill_(6.0)  # copies, as a trained model does
    return PointerReader(model, tokenizer, limit=60, pairs_per_batch=2)


def test_an_answer_that_runs_out_of_length_says_so(reader: PointerReader) -> None:
    answer = reader.answer(reader.encode(QUESTIONS[0], PASSAGES), max_new_tokens=5)
    assert (answer.tokens, answer.ended) == (5, False)
    assert answer.log_prob < 0


def test_an_answer_that_ends_says_so_and_counts_its_end(reader: PointerReader) -> None:
    with torch.no_grad():
        reader.model.head.gate.bias.fill_(-50.0)
        reader.model.head.vocab_bias[102] = 1e4  # ends as soon as it may
    answer = reader.answer(reader.encode(QUESTIONS[0], PASSAGES))
    assert (answer.tokens, answer.ended) == (2, True)
    assert answer.text


def test_many_questions_at_once_are_answered_as_one_by_one(reader: PointerReader) -> None:
    requests = [(q, PASSAGES[: n + 1]) for n, q in enumerate(QUESTIONS)]
    together = reader.answer_many(reader.encode_many(requests), max_new_tokens=6)
    for (question, passages), answer in zip(requests, together, strict=True):
        alone = reader.answer(reader.encode(question, passages), max_new_tokens=6)
        assert answer.text == alone.text
        assert answer.log_prob == pytest.approx(alone.log_prob, abs=1e-3)
    assert len({answer.text for answer in together}) > 1


def test_beams_find_an_answer_at_least_as_likely(reader: PointerReader) -> None:
    for question in QUESTIONS:
        encodings = reader.encode(question, PASSAGES)
        greedy = reader.answer(encodings, max_new_tokens=4)
        beams = reader.answer(encodings, num_beams=4, max_new_tokens=4)
        assert beams.log_prob / beams.tokens >= greedy.log_prob / greedy.tokens - 1e-4
        again = reader.answer(encodings, num_beams=4, max_new_tokens=4)
        assert again == beams  # encodings are not used up


def test_relevance_is_the_models_verdict_over_true_and_false(
    reader: PointerReader, tokenizer: PairTokenizer
) -> None:
    (found,) = reader.verdicts([reader.encode(QUESTIONS[0], PASSAGES)])
    for (title, text), value in zip(PASSAGES, found, strict=True):
        laid_out = pair(
            tokenizer.ids(QUESTIONS[0]), tokenizer.title_ids(title), tokenizer.ids(text), limit=60
        )
        types = [0] * laid_out.boundary + [1] * (len(laid_out.ids) - laid_out.boundary)
        with torch.no_grad():
            probabilities = (
                reader.model(
                    input_ids=torch.tensor([laid_out.ids]),
                    token_type_ids=torch.tensor([types]),
                    decoder_input_ids=torch.tensor([[reader.model.config.relevance_token_id]]),
                )
                .logits[0, 0]
                .exp()
            )
        true, false = float(probabilities[2995]), float(probabilities[6270])
        assert value == pytest.approx(true / (true + false), rel=1e-3)
    assert len({round(value, 6) for value in found}) == 3


def test_ranking_does_not_depend_on_the_order_of_the_passages(reader: PointerReader) -> None:
    (forwards,) = reader.verdicts([reader.encode(QUESTIONS[0], PASSAGES)])
    (backwards,) = reader.verdicts([reader.encode(QUESTIONS[0], PASSAGES[::-1])])
    assert backwards[::-1] == pytest.approx(forwards, abs=1e-5)


def test_picked_passages_answer_as_if_only_they_had_been_given(reader: PointerReader) -> None:
    picked = reader.encode(QUESTIONS[2], PASSAGES).pick([2, 0])
    given = reader.encode(QUESTIONS[2], [PASSAGES[2], PASSAGES[0]])
    assert picked.passages == given.passages
    assert picked.tokens == given.tokens
    one, other = reader.answer(picked, max_new_tokens=6), reader.answer(given, max_new_tokens=6)
    assert one.text == other.text


def test_a_question_without_passages_is_read_alone(reader: PointerReader) -> None:
    encodings = reader.encode(QUESTIONS[0], [])
    answer = reader.answer(encodings, max_new_tokens=3)
    assert (answer.text, answer.tokens) == (ABSTENTION, 2), "there is nothing to copy"
    assert reader.verdicts([encodings]) == [[]]
