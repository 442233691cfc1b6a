"""The pointer model behind the port: what its reader does, and sampling, limits and cancellation on top."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import evenmesh_models
from evenmesh.wire.errors import InvalidField, MeshError
from evenmesh_generator.domain import (
    Answer,
    Augmentation,
    Decoding,
    FinishReason,
    GenerationRequest,
    Normalization,
    Passage,
    RelevanceRequest,
)
from evenmesh_generator.pointer.abstention import ABSTENTION
from evenmesh_generator.pointer.reader import PointerReader
from evenmesh_generator.pointer.tokenization import pad_pairs, pair
from evenmesh_generator.ports import Cancellation, Cancelled
from evenmesh_generator.runtime.assembly import assemble
from evenmesh_generator.runtime.engine import LanguageEngine
from evenmesh_generator.runtime.networks import pair_encoders, pointer
from evenmesh_generator.runtime.networks.linear import Linear
from evenmesh_generator.runtime.networks.protocol import Prompt
from evenmesh_generator.runtime.options import EngineOptions
from evenmesh_generator.runtime.pointer_engines import pointer_engine, torch_network
from evenmesh_kit.compute.model_files import ModelError
from tests.support import tiny_models
from tests.support.operators import Operators
from tests.support.tiny_engines import CPU, TEMPLATES, submit, write
from tests.support.tiny_models import SENTENCES

QUESTION = SENTENCES[0]
PASSAGES = tuple(Passage(str(at), f"Title {at}", text) for at, text in enumerate(SENTENCES[1:5]))
PAIRS = [(one.title, one.text) for one in PASSAGES]


@pytest.fixture(scope="module")
def reader() -> PointerReader:
    return tiny_models.pointer()


@pytest.fixture(scope="module")
def model(reader: PointerReader) -> Iterator[LanguageEngine]:
    engine = pointer_engine("p", tiny_models.pointer().model, reader.tokenizer, CPU, EngineOptions())
    yield engine
    engine.close()


def _request(**fields: Any) -> GenerationRequest:
    base = GenerationRequest(
        QUESTION, PASSAGES, augmentation=Augmentation.FUSION_IN_DECODER, decoding=Decoding(max_new_tokens=10)
    )
    return replace(base, **fields)


def _judge(
    model: LanguageEngine,
    question: str,
    passages: Sequence[Passage],
    normalization: Normalization = Normalization.TRUE_FALSE,
) -> list[float]:
    return model.judge(RelevanceRequest(question, tuple(passages), normalization), Cancellation()).result()


@pytest.mark.parametrize("num_beams", [1, 4])
def test_answers_are_the_readers(model: LanguageEngine, reader: PointerReader, num_beams: int) -> None:
    decoding = Decoding(num_beams=num_beams, max_new_tokens=10)
    texts = set()
    for question in SENTENCES[:4]:
        answer, deltas = write(model, _request(question=question, decoding=decoding))
        encodings = reader.encode(question, PAIRS)
        expected = reader.answer(encodings, num_beams=num_beams, max_new_tokens=10)
        assert answer.text == "".join(deltas) == expected.text
        assert answer.log_probability == pytest.approx(expected.log_prob, abs=1e-4)
        assert answer.completion_tokens == expected.tokens
        assert answer.prompt_tokens == encodings.tokens
        assert all(deltas)
        assert len(deltas) == 1 or num_beams == 1
        texts.add(answer.text)
    assert len(texts) > 1, "the comparison would be vacuous"


def test_in_prompt_reads_all_passages_as_one(model: LanguageEngine, reader: PointerReader) -> None:
    answer, _ = write(model, _request(augmentation=Augmentation.IN_PROMPT))
    together = " ".join(f"context {at}: Title {at - 1} {text}" for at, text in enumerate(SENTENCES[1:5], 1))
    encodings = reader.encode(QUESTION, [("", together)])
    assert any(answer.text in text for text in SENTENCES[1:5]), (
        "of a passage, not of what stands between them"
    )
    assert answer.prompt_tokens == encodings.tokens
    assert (answer.dropped_passages, answer.cut_passages) == (0, 0)


def test_in_prompt_leaves_out_the_last_passages_that_do_not_fit(model: LanguageEngine) -> None:
    long = tuple(Passage(str(at), "", " ".join([SENTENCES[1]] * 12)) for at in range(9))
    request = _request(augmentation=Augmentation.IN_PROMPT, passages=long)
    answer, _ = write(model, request)
    kept = len(long) - answer.dropped_passages
    assert 0 < kept < len(long)
    assert answer.cut_passages == 0
    assert answer.prompt_tokens <= model.describe().max_input_tokens
    alone, _ = write(model, replace(request, passages=long[:kept]))
    assert (alone.text, alone.prompt_tokens) == (answer.text, answer.prompt_tokens)
    endless, _ = write(model, replace(request, passages=(Passage("a", "", "word " * 900),)))
    assert (endless.dropped_passages, endless.cut_passages) == (0, 1)
    assert endless.prompt_tokens == model.describe().max_input_tokens


def test_retrieval_free(model: LanguageEngine, reader: PointerReader) -> None:
    answer, _ = write(model, _request(passages=(), augmentation=Augmentation.RETRIEVAL_FREE))
    assert answer.text == reader.answer(reader.encode(QUESTION, []), max_new_tokens=10).text


def test_sampling_depends_on_seed_and_question_alone(model: LanguageEngine) -> None:
    def drawn(seed: int) -> Answer:
        torch.manual_seed(seed + 1)
        answer, deltas = write(
            model, _request(decoding=Decoding(max_new_tokens=10, temperature=1.5, top_p=0.9, seed=seed))
        )
        assert "".join(deltas) == answer.text
        return answer

    assert drawn(1) == drawn(1)
    assert len({drawn(seed).text for seed in range(5)}) > 1
    greedy, _ = write(model, _request())
    cold, _ = write(model, _request(decoding=Decoding(max_new_tokens=10, temperature=1e-3)))
    assert cold.text == greedy.text
    assert cold.log_probability == pytest.approx(greedy.log_probability, abs=1e-4)


def test_a_batch_answers_as_each_request_alone(model: LanguageEngine) -> None:
    requests = [
        _request(
            question=SENTENCES[at % 8],
            passages=PASSAGES[: 1 + at % 4],
            decoding=Decoding(
                num_beams=(1, 4, 1)[at % 3], max_new_tokens=8, temperature=(0.0, 0.0, 1.0)[at % 3], seed=at
            ),
        )
        for at in range(12)
    ]
    requests[4] = replace(requests[4], question="word " * 100)
    ears = [submit(model, request) for request in requests]
    for at, outcome in enumerate(ear.outcome() for ear in ears):
        if at == 4:
            assert isinstance(outcome, InvalidField)
            continue
        assert not isinstance(outcome, MeshError)
        alone, _ = write(model, requests[at])
        assert replace(outcome, log_probability=0.0) == replace(alone, log_probability=0.0)
        assert outcome.log_probability == pytest.approx(alone.log_probability, abs=1e-3)


@pytest.mark.parametrize("normalization", list(Normalization))
def test_relevance_is_the_relevance_head(
    model: LanguageEngine, reader: PointerReader, normalization: Normalization
) -> None:
    """The reference: one forward pass per passage from the relevance start token."""
    config = reader.model.config
    expected = []
    for title, text in PAIRS:
        tokens = reader.tokenizer
        laid_out = pair(tokens.ids(QUESTION), tokens.title_ids(title), tokens.ids(text), limit=256)
        input_ids, mask, types = pad_pairs([laid_out])
        with torch.inference_mode():
            log_probs = reader.model(
                input_ids=input_ids,
                attention_mask=mask,
                token_type_ids=types,
                decoder_input_ids=torch.tensor([[config.relevance_token_id]]),
            ).logits[0, 0]
        true, false = (
            float(log_probs[token].exp()) for token in (config.true_token_id, config.false_token_id)
        )
        expected.append(true / (true + false) if normalization is Normalization.TRUE_FALSE else true)
    got = _judge(model, QUESTION, PASSAGES, normalization)
    assert got == pytest.approx(expected, rel=1e-3)
    assert len(set(got)) == len(PASSAGES)


def test_relevance_of_more_passages_than_one_chunk_keeps_their_order(model: LanguageEngine) -> None:
    passages = [Passage(str(at), "", " ".join(SENTENCES[at % 8 :])) for at in range(70)]
    together = _judge(model, QUESTION, passages, Normalization.TRUE_FALSE)
    for at in (0, 33, 69):
        (alone,) = _judge(model, QUESTION, passages[at : at + 1], Normalization.TRUE_FALSE)
        assert alone == pytest.approx(together[at], rel=1e-3)


@pytest.mark.parametrize(
    ("question", "has"),
    [
        ("word " * 65, "has 65 tokens and no"),
        (f"A word. {'Word ' * 64}?", "has 65 tokens in"),
        (f"{'Word ' * 64}?", "has 65 tokens in"),
    ],
)
@pytest.mark.parametrize("contextual", ["", "word"])
def test_what_asks_is_never_cut(model: LanguageEngine, question: str, has: str, contextual: str) -> None:
    why = f"{has} sentences that end with a question mark; p reads at most 64"
    with pytest.raises(InvalidField, match=why) as caught:
        write(model, _request(question=question, contextual_question=contextual))
    assert caught.value.field == "question"


@pytest.mark.parametrize("augmentation", [Augmentation.FUSION_IN_DECODER, Augmentation.IN_PROMPT])
@pytest.mark.parametrize(
    ("times", "contextual", "cut"), [(0, False, False), (1, False, True), (1, True, True), (30, False, True)]
)
def test_what_asks_is_read_first_and_the_answer_says_so_if_a_part_is_not_read(
    model: LanguageEngine, augmentation: Augmentation, times: int, contextual: bool, cut: bool
) -> None:
    story = "Word word word. " * times
    question = f"{story}{QUESTION}"
    more = " Zürich" if contextual else ""
    long, _ = write(
        model,
        _request(
            question=question,
            augmentation=augmentation,
            contextual_question=f"{question}{more}" if contextual else "",
        ),
    )
    word = " Word" if times else ""
    short, _ = write(model, _request(question=f"{QUESTION}{word}{more}", augmentation=augmentation))
    assert (long.text, long.prompt_tokens, long.log_probability) == (
        short.text,
        short.prompt_tokens,
        short.log_probability,
    )
    assert (long.cut_question, short.cut_question) == (cut, False)
    assert _judge(model, f"{story}{QUESTION}", PASSAGES) == pytest.approx(
        _judge(model, f"{QUESTION}{word}", PASSAGES)
    )


def test_a_long_query_is_judged_as_far_as_it_can_be_read(model: LanguageEngine) -> None:
    """A conversation adds words of earlier turns to its query, more than the model reads."""
    most = " ".join([QUESTION] + [f"word{at}" for at in range(64)])
    got = _judge(model, most, PASSAGES)
    assert got == pytest.approx(_judge(model, f"{most} more words", PASSAGES))
    assert got != pytest.approx(_judge(model, QUESTION, PASSAGES))


def test_the_question_in_its_context_is_read_as_far_as_it_fits(
    model: LanguageEngine, reader: PointerReader
) -> None:
    assert model.describe().reads_context
    contextual = f"{QUESTION} {SENTENCES[5]}"
    answer, _ = write(model, _request(contextual_question=contextual))
    encodings = reader.encode(contextual, PAIRS)
    assert answer.text == reader.answer(encodings, max_new_tokens=10).text
    assert answer.prompt_tokens == encodings.tokens
    assert answer.prompt_tokens > reader.encode(QUESTION, PAIRS).tokens
    longer, _ = write(model, _request(contextual_question="word " * 70))
    longest, _ = write(model, _request(question="word " * 64))
    blank, _ = write(model, _request(contextual_question=" "))
    assert blank.prompt_tokens == reader.encode(QUESTION, PAIRS).tokens
    assert (longer.prompt_tokens, longer.log_probability) == (longest.prompt_tokens, longest.log_probability)


def test_templates_are_for_other_models(model: LanguageEngine) -> None:
    with pytest.raises(InvalidField, match="takes no template") as caught:
        write(model, _request(template="fusion-in-decoder"))
    assert caught.value.field == "template"


def test_cancelled_before_it_began(model: LanguageEngine) -> None:
    cancel = Cancellation()
    cancel.cancel()
    with pytest.raises(Cancelled):
        write(model, _request(), cancel)
    with pytest.raises(Cancelled):
        model.judge(RelevanceRequest(QUESTION, PASSAGES), cancel).result()


@pytest.mark.parametrize("num_beams", [1, 3])
def test_an_answer_says_where_it_stands_and_how_sure_it_is(reader: PointerReader, num_beams: int) -> None:
    tiny = tiny_models.pointer().model
    tiny.config.confidence = {"span": [0.1, 1.0], "abstention": [0.2, 2.0]}
    engine = pointer_engine("p", tiny, reader.tokenizer, CPU, EngineOptions())
    decoding = Decoding(num_beams=num_beams, max_new_tokens=10)
    try:
        answer, _ = write(engine, _request(decoding=decoding))
        silent, _ = write(
            engine, _request(passages=(), augmentation=Augmentation.RETRIEVAL_FREE, decoding=decoding)
        )
    finally:
        engine.close()
    assert answer.span is not None
    assert PASSAGES[answer.span.passage].text[answer.span.start : answer.span.end] == answer.text
    mean = math.exp(answer.log_probability / answer.completion_tokens)
    assert answer.confidence == pytest.approx(1 / (1 + math.exp(-1) * (mean / (1 - mean)) ** -0.1))
    assert (silent.text, silent.span) == (ABSTENTION, None)
    assert silent.confidence is not None
    assert 0 < silent.confidence < 1


def test_a_model_without_a_calibration_has_no_confidence(model: LanguageEngine) -> None:
    answer, _ = write(model, _request())
    assert answer.confidence is None
    assert answer.span is not None


def test_a_long_passage_is_read_in_pieces(model: LanguageEngine) -> None:
    long = Passage("long", "", "word " * 600)
    short, _ = write(model, _request())
    both, _ = write(model, _request(passages=(*PASSAGES, long)))
    assert both.cut_passages == 0
    assert both.prompt_tokens > short.prompt_tokens + 600


def test_passages_that_were_cut_are_counted(model: LanguageEngine) -> None:
    long = Passage("long", "", "word " * 13_000)
    answer, _ = write(model, _request(passages=(*PASSAGES, long, replace(long, id="longer"))))
    assert (answer.cut_passages, answer.dropped_passages) == (2, 0)
    assert answer.prompt_tokens <= 16 * 256  # pairs of one answer


def test_many_passages_are_read_once_each(model: LanguageEngine) -> None:
    many = tuple(Passage(str(at), "", "word " * 600) for at in range(20))
    answer, _ = write(model, _request(passages=many))
    assert (answer.cut_passages, answer.dropped_passages) == (20, 0)
    assert answer.prompt_tokens == 20 * 256


def test_what_was_judged_is_not_encoded_again_to_answer(model: LanguageEngine) -> None:
    question = "which bicycle?"
    _judge(model, question, PASSAGES)
    answer, _ = write(model, _request(question=question))
    assert answer.cost.computed_tokens == 0
    assert answer.cost.reused_tokens == answer.prompt_tokens


def test_running_out_of_length(model: LanguageEngine) -> None:
    answer, _ = write(model, _request(decoding=Decoding(max_new_tokens=1)))
    assert (answer.finish_reason, answer.completion_tokens) == (FinishReason.LENGTH, 1)


def test_description(model: LanguageEngine) -> None:
    description = model.describe()
    assert (description.engine, description.architecture) == ("pointer", "PointerForConditionalGeneration")
    assert description.augmentations == (
        Augmentation.FUSION_IN_DECODER,
        Augmentation.IN_PROMPT,
        Augmentation.RETRIEVAL_FREE,
    )
    assert description.scores_relevance
    assert (description.max_input_tokens, description.max_new_tokens) == (512, 511)


def test_a_folder_without_the_model(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "evenmesh-pointer"}', encoding="utf-8")
    with pytest.raises(ModelError, match="incomplete") as caught:
        assemble("p", EngineOptions(path=str(tmp_path)), TEMPLATES)
    assert "\n" not in str(caught.value)


@pytest.mark.skipif(not evenmesh_models.reader().is_dir(), reason="no bundled weights in this checkout")
def test_the_bundled_model_answers_and_judges() -> None:
    bundled = assemble("evenmesh-pointer", EngineOptions(dtype="float32"), TEMPLATES)
    passages = (
        Passage("a", "Water", "Water boils at 100 degrees Celsius at sea level, and freezes at 0 degrees."),
        Passage("b", "Hamlet", "Hamlet is a play by William Shakespeare about the prince of Denmark."),
    )
    for question, answer, relevant in (
        ("At what temperature does water boil at sea level?", "100 degrees Celsius", 0),
        ("Who wrote the play Hamlet?", "William Shakespeare", 1),
    ):
        request = GenerationRequest(question, passages, augmentation=Augmentation.FUSION_IN_DECODER)
        written, deltas = write(bundled, request)
        assert written.text == "".join(deltas) == answer
        assert written.finish_reason is FinishReason.STOP
        scores = _judge(bundled, question, passages)
        assert scores[relevant] > 0.5 > scores[1 - relevant]
    bundled.close()


@pytest.mark.skipif(not evenmesh_models.reader().is_dir(), reason="no bundled weights in this checkout")
@pytest.mark.parametrize("num_beams", [1, 4])
def test_the_bundled_models_answers_are_those_of_plain_generate(num_beams: int) -> None:
    plain = PointerReader.from_folder()
    bundled = assemble("evenmesh-pointer", EngineOptions(dtype="float32", device="cpu"), TEMPLATES)
    decoding = Decoding(num_beams=num_beams, max_new_tokens=16)
    asked = [_request(question=text, decoding=decoding) for text in SENTENCES[:5]]
    ears = [submit(bundled, request) for request in asked]
    for request, ear in zip(asked, ears, strict=True):
        outcome = ear.outcome()
        assert isinstance(outcome, Answer)
        found = plain.answer(plain.encode(request.question, PAIRS), num_beams=num_beams, max_new_tokens=16)
        assert (outcome.text, outcome.completion_tokens) == (found.text, found.tokens)
        assert outcome.log_probability == pytest.approx(found.log_prob, abs=1e-3)
    bundled.close()


def test_abstaining_more_readily_is_the_readers_too(reader: PointerReader) -> None:
    """The bias flips one question's answer and leaves the others': the running batch must add it where they do."""
    own = tiny_models.pointer()
    encodings = own.encode(QUESTION, PAIRS)
    own.model.config.abstention_bias = -own.margins([encodings])[0] + 0.01
    engine = pointer_engine("p", own.model, own.tokenizer, CPU, EngineOptions())
    try:
        for num_beams in (1, 3):
            decoding = Decoding(num_beams=num_beams, max_new_tokens=6)
            answer, _ = write(engine, _request(decoding=decoding))
            expected = own.answer(encodings, num_beams=num_beams, max_new_tokens=6)
            assert answer.text == expected.text
            assert answer.log_probability == pytest.approx(expected.log_prob, abs=1e-4)
            plain = reader.answer(reader.encode(QUESTION, PAIRS), num_beams=num_beams, max_new_tokens=6)
            assert plain.log_prob != pytest.approx(expected.log_prob, abs=1e-4)
    finally:
        engine.close()


def test_weights_converted_once_encode_the_same_to_the_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    """In bfloat16; no weight is converted in a pass, and fewer tensors are converted at all."""
    prompt = Prompt(((101, 2000, 2001, 102), (101, 2002, 102, 2003, 2004, 102)), (1,), (2, 2))
    found, counted = [], []
    for converted in (False, True):
        with monkeypatch.context() as patch:
            if not converted:
                patch.setattr(pair_encoders, "narrow", lambda *_: None)
            model = tiny_models.pointer().model
            network = torch_network(model, dtype=torch.bfloat16, batch_tokens=64, cache_bytes=0)
        weights = {one.data_ptr() for one in model.parameters()}
        prefill = network.prefill(prompt)
        with torch.inference_mode(), Operators() as operators:
            network.advance([prefill], 64)
        found.append([value for part in prefill.parts() for value in part.values()])
        counted.append((sum(one.data_ptr() in weights for one in operators.casts), len(operators.casts)))
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))
    assert counted[0][0] > 0 == counted[1][0]
    assert counted[1][1] < counted[0][1]


def test_weights_laid_out_once_project_the_same() -> None:
    generator = torch.Generator().manual_seed(0)
    weight, bias, hidden = (torch.randn(*size, generator=generator) for size in ((70, 48), (70,), (9, 48)))
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.bfloat16, 2e-2)):
        for given in (bias.to(dtype), None):
            wanted = torch.nn.functional.linear(hidden, weight, None if given is None else given.float())
            for rows in (1, 4, 9):
                found = Linear(weight.to(dtype), given)(hidden[:rows].to(dtype))
                assert found.dtype is dtype
                torch.testing.assert_close(found.float(), wanted[:rows], rtol=tolerance, atol=10 * tolerance)


def test_what_is_copied_is_found_source_by_source() -> None:
    """Keys in bfloat16 are multiplied as float32, each source's own tokens alone."""
    generator = torch.Generator().manual_seed(0)
    queries, keys = (torch.randn(*size, generator=generator) for size in ((3, 2, 8), (3, 5, 8)))
    for narrow in (keys, keys.bfloat16()):
        found = pointer._products(queries, narrow, [5, 2, 4])
        wanted = torch.einsum("rwh,rsh->rws", queries, narrow.float())
        for source, length in enumerate((5, 2, 4)):
            torch.testing.assert_close(found[source, :, :length], wanted[source, :, :length])
