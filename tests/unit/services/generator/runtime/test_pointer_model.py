"""The pointer model behind the port: what its reader does, and sampling, limits and cancellation on top."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from meshkit.errors import InvalidField, MeshError
from meshkit.models import ModelError
from services.generator.runtime.pointer import PointerModel
from services.generator.domain import (
    Answer,
    Augmentation,
    Decoding,
    FinishReason,
    GenerationRequest,
    Normalization,
    Passage,
)
from services.generator.pointer import artifact
from services.generator.pointer.examples import pad_pairs
from services.generator.pointer.reader import PointerReader
from services.generator.pointer.tokenization import pair
from services.generator.ports import Cancellation, Cancelled
from tests import tiny_models
from tests.tiny_models import SENTENCES

QUESTION = SENTENCES[0]
PASSAGES = tuple(Passage(str(at), f"Title {at}", text) for at, text in enumerate(SENTENCES[1:5]))
PAIRS = [(one.title, one.text) for one in PASSAGES]


@pytest.fixture(scope="module")
def reader() -> PointerReader:
    return tiny_models.pointer()


@pytest.fixture(scope="module")
def model(reader: PointerReader) -> PointerModel:
    return PointerModel("p", "v", reader, dtype="float32", batch_tokens=4096)


def _request(**fields: Any) -> GenerationRequest:
    base = GenerationRequest(
        QUESTION, PASSAGES, augmentation=Augmentation.FUSION_IN_DECODER, decoding=Decoding(max_new_tokens=10)
    )
    return replace(base, **fields)


def _write(model: PointerModel, request: GenerationRequest) -> tuple[Answer, list[str]]:
    deltas: list[str] = []
    return model.stream(request, Cancellation(), deltas.append), deltas


@pytest.mark.parametrize("num_beams", [1, 4])
def test_answers_are_the_readers(model: PointerModel, reader: PointerReader, num_beams: int) -> None:
    decoding = Decoding(num_beams=num_beams, max_new_tokens=10)
    texts = set()
    for question in SENTENCES[:4]:
        answer, deltas = _write(model, _request(question=question, decoding=decoding))
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


def test_retrieval_free(model: PointerModel, reader: PointerReader) -> None:
    answer, _ = _write(model, _request(passages=(), augmentation=Augmentation.RETRIEVAL_FREE))
    assert answer.text == reader.answer(reader.encode(QUESTION, []), max_new_tokens=10).text


def test_sampling_depends_on_seed_and_question_alone(model: PointerModel) -> None:
    def drawn(seed: int) -> Answer:
        torch.manual_seed(seed + 1)
        answer, deltas = _write(
            model, _request(decoding=Decoding(max_new_tokens=10, temperature=1.5, top_p=0.9, seed=seed))
        )
        assert "".join(deltas) == answer.text
        return answer

    assert drawn(1) == drawn(1)
    assert len({drawn(seed).text for seed in range(5)}) > 1
    greedy, _ = _write(model, _request())
    cold, _ = _write(model, _request(decoding=Decoding(max_new_tokens=10, temperature=1e-3)))
    assert cold.text == greedy.text
    assert cold.log_probability == pytest.approx(greedy.log_probability, abs=1e-4)


def test_a_batch_answers_as_each_request_alone(model: PointerModel) -> None:
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
    for at, outcome in enumerate(model.batch(requests, Cancellation())):
        if at == 4:
            assert isinstance(outcome, InvalidField)
            continue
        assert not isinstance(outcome, MeshError)
        alone, _ = _write(model, requests[at])
        assert replace(outcome, log_probability=0.0) == replace(alone, log_probability=0.0)
        assert outcome.log_probability == pytest.approx(alone.log_probability, abs=1e-3)


@pytest.mark.parametrize("normalization", list(Normalization))
def test_relevance_is_the_relevance_head(
    model: PointerModel, reader: PointerReader, normalization: Normalization
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
    got = model.relevance(QUESTION, PASSAGES, normalization, Cancellation())
    assert got == pytest.approx(expected, rel=1e-3)
    assert len(set(got)) == len(PASSAGES)


def test_relevance_of_more_passages_than_one_chunk_keeps_their_order(model: PointerModel) -> None:
    passages = [Passage(str(at), "", " ".join(SENTENCES[at % 8 :])) for at in range(70)]
    together = model.relevance(QUESTION, passages, Normalization.TRUE_FALSE, Cancellation())
    for at in (0, 33, 69):
        (alone,) = model.relevance(QUESTION, passages[at : at + 1], Normalization.TRUE_FALSE, Cancellation())
        assert alone == pytest.approx(together[at], rel=1e-3)


def test_a_question_too_long_is_an_error_and_never_cut(model: PointerModel) -> None:
    question = "word " * 65
    with pytest.raises(InvalidField, match="has 65 tokens; p reads at most 64") as caught:
        _write(model, _request(question=question))
    assert caught.value.field == "question"
    with pytest.raises(InvalidField, match="has 65 tokens"):
        model.relevance(question, PASSAGES, Normalization.TRUE_FALSE, Cancellation())


def test_templates_are_for_other_models(model: PointerModel) -> None:
    with pytest.raises(InvalidField, match="takes no template") as caught:
        _write(model, _request(template="fusion-in-decoder"))
    assert caught.value.field == "template"


@pytest.mark.parametrize(
    "decoding",
    [Decoding(), Decoding(num_beams=4), Decoding(temperature=1.0)],
    ids=["greedy", "beams", "sampled"],
)
def test_nobody_waits_any_more(model: PointerModel, reader: PointerReader, decoding: Decoding) -> None:
    """Cancelled in step 3 of the decoder: no step 4."""
    cancel = Cancellation()
    steps = 0

    def count(*_: Any) -> None:
        nonlocal steps
        steps += 1
        if steps == 3:
            cancel.cancel()

    hook = reader.model.register_forward_hook(count)
    try:
        with pytest.raises(Cancelled):
            model.stream(_request(decoding=decoding), cancel, lambda _: None)
    finally:
        hook.remove()
    assert steps == 3


def test_cancelled_before_it_began(model: PointerModel) -> None:
    cancel = Cancellation()
    cancel.cancel()
    with pytest.raises(Cancelled):
        model.batch([_request()], cancel)
    with pytest.raises(Cancelled):
        model.relevance(QUESTION, PASSAGES, Normalization.TRUE_FALSE, cancel)


def test_running_out_of_length(model: PointerModel) -> None:
    answer, _ = _write(model, _request(decoding=Decoding(max_new_tokens=1)))
    assert (answer.finish_reason, answer.completion_tokens) == (FinishReason.LENGTH, 1)


def test_description(model: PointerModel) -> None:
    description = model.describe()
    assert (description.engine, description.architecture) == ("pointer", "PointerForConditionalGeneration")
    assert description.augmentations == (Augmentation.FUSION_IN_DECODER, Augmentation.RETRIEVAL_FREE)
    assert description.scores_relevance
    assert (description.max_input_tokens, description.max_new_tokens) == (512, 511)


def test_a_folder_without_the_model(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="incomplete") as caught:
        PointerModel.from_folder("p", tmp_path, dtype=torch.float32, batch_tokens=4096)
    assert "\n" not in str(caught.value)


@pytest.mark.skipif(not artifact.bundled().is_dir(), reason="no bundled weights in this checkout")
def test_the_bundled_model_answers_and_judges() -> None:
    bundled = PointerModel.from_folder("ragmesh-pointer", None, dtype=torch.float32, batch_tokens=8192)
    passages = (
        Passage("a", "Water", "Water boils at 100 degrees Celsius at sea level, and freezes at 0 degrees."),
        Passage("b", "Hamlet", "Hamlet is a play by William Shakespeare about the prince of Denmark."),
    )
    for question, answer, relevant in (
        ("At what temperature does water boil at sea level?", "100 degrees Celsius", 0),
        ("Who wrote the play Hamlet?", "William Shakespeare", 1),
    ):
        request = GenerationRequest(question, passages, augmentation=Augmentation.FUSION_IN_DECODER)
        written, deltas = _write(bundled, request)
        assert written.text == "".join(deltas) == answer
        assert written.finish_reason is FinishReason.STOP
        scores = bundled.relevance(question, passages, Normalization.TRUE_FALSE, Cancellation())
        assert scores[relevant] > 0.5 > scores[1 - relevant]
