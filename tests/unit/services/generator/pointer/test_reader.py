"""The reader streams, batches, ranks and cancels without changing what the model says."""

from collections.abc import Callable

import pytest
import torch

from services.generator.pointer.modeling import PointerForConditionalGeneration
from services.generator.pointer.reader import Answer, Finish, PointerReader, Token
from services.generator.pointer.tokenization import PairTokenizer, pair

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


def stream(reader: PointerReader, question: str, **options: int) -> tuple[list[Token], Answer]:
    *tokens, answer = reader.answer_stream(reader.encode(question, PASSAGES), **options)
    assert isinstance(answer, Answer)
    return [token for token in tokens if isinstance(token, Token)], answer


@pytest.mark.parametrize("question", QUESTIONS)
def test_the_stream_is_the_answer(reader: PointerReader, question: str) -> None:
    tokens, streamed = stream(reader, question, max_new_tokens=6)
    whole = reader.answer(reader.encode(question, PASSAGES), max_new_tokens=6)
    assert (streamed.text, streamed.tokens, streamed.finish) == (whole.text, whole.tokens, whole.finish)
    assert streamed.citations == whole.citations
    assert streamed.log_prob == pytest.approx(whole.log_prob, abs=1e-3)
    assert "".join(token.text for token in tokens) == streamed.text
    assert streamed.text


def test_log_prob_is_the_sum_over_the_tokens(reader: PointerReader) -> None:
    tokens, answer = stream(reader, QUESTIONS[0], max_new_tokens=5)
    assert answer.finish is Finish.LENGTH
    assert answer.tokens == len(tokens) == 5
    assert answer.log_prob == pytest.approx(sum(token.log_prob for token in tokens))
    assert all(token.log_prob < 0 for token in tokens)


def test_an_answer_that_ends_says_so_and_counts_its_end(reader: PointerReader) -> None:
    with torch.no_grad():
        reader.model.head.gate.bias.fill_(-50.0)
        reader.model.head.vocab_bias[102] = 1e4  # ends at once
    tokens, answer = stream(reader, QUESTIONS[0])
    assert tokens == []
    assert (answer.text, answer.tokens, answer.finish, answer.citations) == ("", 1, Finish.STOP, ())
    assert reader.answer(reader.encode(QUESTIONS[0], PASSAGES)) == answer


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
        assert beams.tokens == greedy.tokens == 4
        assert beams.log_prob >= greedy.log_prob - 1e-4
        again = reader.answer(encodings, num_beams=4, max_new_tokens=4)
        assert again == beams  # encodings are not used up


def test_cancelling_stops_before_the_next_token(reader: PointerReader) -> None:
    asked = iter([False, False, True])
    encodings = reader.encode(QUESTIONS[0], PASSAGES)
    found = list(reader.answer_stream(encodings, cancelled=lambda: next(asked)))
    answer = found[-1]
    assert isinstance(answer, Answer)
    assert (len(found) - 1, answer.tokens, answer.finish) == (2, 2, Finish.CANCELLED)


@pytest.mark.parametrize("num_beams", [1, 3])
def test_cancelling_stops_a_whole_answer_too(reader: PointerReader, num_beams: int) -> None:
    calls: list[int] = []

    def cancelled() -> bool:
        calls.append(1)
        return len(calls) == 2

    encodings = reader.encode(QUESTIONS[0], PASSAGES)
    answer = reader.answer(encodings, num_beams=num_beams, max_new_tokens=20, cancelled=cancelled)
    assert answer.finish is Finish.CANCELLED
    assert answer.tokens <= 3


def test_relevance_is_the_models_verdict_over_true_and_false(
    reader: PointerReader, tokenizer: PairTokenizer
) -> None:
    found = reader.relevance(QUESTIONS[0], PASSAGES)
    raw = reader.relevance(QUESTIONS[0], PASSAGES, over_vocabulary=True)
    for (title, text), value, mass in zip(PASSAGES, found, raw, strict=True):
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
        assert mass == pytest.approx(true, rel=1e-3)
    assert len({round(value, 6) for value in found}) == 3


def test_ranking_does_not_depend_on_the_order_of_the_passages(reader: PointerReader) -> None:
    forwards = reader.relevance(QUESTIONS[0], PASSAGES)
    backwards = reader.relevance(QUESTIONS[0], PASSAGES[::-1])
    assert backwards[::-1] == pytest.approx(forwards, abs=1e-5)


def test_picked_passages_answer_as_if_only_they_had_been_given(reader: PointerReader) -> None:
    picked = reader.encode(QUESTIONS[2], PASSAGES).pick([2, 0])
    given = reader.encode(QUESTIONS[2], [PASSAGES[2], PASSAGES[0]])
    assert picked.passages == given.passages
    assert picked.tokens == given.tokens
    one, other = reader.answer(picked, max_new_tokens=6), reader.answer(given, max_new_tokens=6)
    assert (one.text, one.citations) == (other.text, other.citations)


def test_a_question_without_passages_is_read_alone(reader: PointerReader) -> None:
    encodings = reader.encode(QUESTIONS[0], [])
    answer = reader.answer(encodings, max_new_tokens=3)
    assert answer.citations == ()
    assert answer.tokens == 3
    assert reader.verdicts([encodings]) == [[]]


def test_a_citation_marks_the_answer_in_its_passage(reader: PointerReader) -> None:
    encodings = reader.encode(QUESTIONS[1], PASSAGES)
    for limit in range(1, 4):
        answer = reader.answer(encodings, max_new_tokens=limit)
        for place in answer.citations:
            span = PASSAGES[place.passage][1][place.begin : place.end]
            letters = [c for c in span.casefold() if c.isalnum()]
            assert letters == [c for c in answer.text.casefold() if c.isalnum()]
