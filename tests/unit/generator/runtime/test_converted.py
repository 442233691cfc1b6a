"""Models that CTranslate2 runs: the answers of plain transformers, token by token, and what it cannot do."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip(
    "ctranslate2",
    reason="CTranslate2 is not installed: in a checkout, pip install './services/generator[ctranslate2]'",
)

import ctranslate2

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
from evenmesh_generator.ports import Cancellation, Cancelled
from evenmesh_generator.prompts import TemplateLibrary
from evenmesh_generator.runtime.assembly import assemble
from evenmesh_generator.runtime.engine import LanguageEngine
from evenmesh_generator.runtime.loops.converted_model import ConvertedModel
from evenmesh_generator.runtime.options import EngineOptions
from evenmesh_generator.runtime.tasks import Outcome
from evenmesh_kit.compute.model_files import ModelError
from tests.support import tiny_models
from tests.support.tiny_models import SENTENCES

MAKERS = {"t5": tiny_models.t5, "llama": tiny_models.llama}
MOST = 16


@dataclass
class Ear:
    """Records one request."""

    deltas: list[str] = field(default_factory=list)
    outcome: Outcome | None = None
    ended: threading.Event = field(default_factory=threading.Event)
    cancel: Cancellation = field(default_factory=Cancellation)
    stop_after: int = 10**9

    def on_delta(self, text: str) -> None:
        self.deltas.append(text)
        if len(self.deltas) >= self.stop_after:
            self.cancel.cancel()

    def on_end(self, outcome: Outcome) -> None:
        assert self.outcome is None
        self.outcome = outcome
        self.ended.set()

    def wait(self) -> Outcome:
        assert self.ended.wait(60)
        assert self.outcome is not None
        return self.outcome


@dataclass
class Pair:
    """A model both ways."""

    converted: LanguageEngine
    usual: LanguageEngine
    plain: Any
    tokenizer: Any


@pytest.fixture(scope="module", params=MAKERS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    folder = MAKERS[request.param](tmp_path_factory.mktemp(request.param))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        converted = _assembled(folder, "ctranslate2")
    usual = _assembled(folder, "auto")
    yield Pair(converted, usual, *tiny_models.plain(folder))
    converted.close()
    usual.close()


def _assembled(folder: Path, engine: str) -> LanguageEngine:
    options = EngineOptions(path=str(folder), engine=engine, device="cpu", dtype="float32")
    return assemble("tiny", options, TemplateLibrary.bundled())


def _request(question: str, **decoding: Any) -> GenerationRequest:
    kept = Decoding(max_new_tokens=MOST, **decoding)
    return GenerationRequest(
        question, augmentation=Augmentation.RETRIEVAL_FREE, template="question", decoding=kept
    )


def _answers(engine: LanguageEngine, requests: list[GenerationRequest]) -> list[Answer]:
    ears = [Ear() for _ in requests]
    for request, ear in zip(requests, ears, strict=True):
        engine.submit(request, ear.cancel, ear)
    outcomes = [ear.wait() for ear in ears]
    for ear, outcome in zip(ears, outcomes, strict=True):
        assert isinstance(outcome, Answer)
        assert "".join(ear.deltas) == outcome.text
    return [outcome for outcome in outcomes if isinstance(outcome, Answer)]


@pytest.mark.parametrize("beams", [1, 4])
def test_answers_are_those_of_plain_generate(pair: Pair, beams: int) -> None:
    answers = _answers(pair.converted, [_request(one, num_beams=beams) for one in SENTENCES])
    for question, answer in zip(SENTENCES, answers, strict=True):
        inputs = pair.tokenizer(question, return_tensors="pt", return_token_type_ids=False)
        with torch.inference_mode():
            found = pair.plain.generate(
                **inputs, do_sample=False, num_beams=beams, max_new_tokens=MOST, pad_token_id=0
            )[0].tolist()
        ids = found[1:] if pair.plain.config.is_encoder_decoder else found[inputs.input_ids.shape[1] :]
        assert answer.text == pair.tokenizer.decode(ids, skip_special_tokens=True)
        assert (answer.finish_reason is FinishReason.STOP) == (pair.tokenizer.eos_token_id in ids)


@pytest.mark.parametrize("beams", [1, 4])
def test_log_probabilities_are_those_of_the_usual_engine(pair: Pair, beams: int) -> None:
    requests = [_request(one, num_beams=beams) for one in SENTENCES]
    for one, other in zip(_answers(pair.converted, requests), _answers(pair.usual, requests), strict=True):
        assert replace(one, log_probability=0.0) == replace(other, log_probability=0.0)
        assert one.log_probability == pytest.approx(other.log_probability, abs=0.05)


@pytest.mark.parametrize("beams", [1, 4])
def test_a_text_of_stop_ends_an_answer_and_no_other_of_its_batch(pair: Pair, beams: int) -> None:
    whole = _answers(pair.converted, [_request(one, num_beams=beams) for one in SENTENCES])
    stops = [(one.text[1:3],) if at % 2 and len(one.text) > 2 else () for at, one in enumerate(whole)]
    assert any(stops)
    requests = [_request(one, num_beams=beams, stop=stop) for one, stop in zip(SENTENCES, stops, strict=True)]
    for answer, before, stop in zip(_answers(pair.converted, requests), whole, stops, strict=True):
        assert answer.text == (before.text[: before.text.index(stop[0])] if stop else before.text)
        assert answer.finish_reason is (FinishReason.STOP if stop else before.finish_reason)


def test_greedy_answers_of_one_batch_end_each_at_its_own_length(pair: Pair) -> None:
    lengths = [3, 9, 5]
    requests = [
        GenerationRequest(
            SENTENCES[0],
            augmentation=Augmentation.RETRIEVAL_FREE,
            template="question",
            decoding=Decoding(max_new_tokens=most),
        )
        for most in lengths
    ]
    assert [one.completion_tokens for one in _answers(pair.converted, requests)] == lengths


def test_judgements_are_those_of_the_usual_engine(pair: Pair) -> None:
    passages = tuple(Passage(str(at), "", text) for at, text in enumerate(SENTENCES[1:5]))
    for normalization in Normalization:
        request = RelevanceRequest(SENTENCES[0], passages, normalization)
        assert pair.converted.judge(request, Cancellation()).result() == pytest.approx(
            pair.usual.judge(request, Cancellation()).result(), abs=1e-3
        )


def test_who_leaves_stops_the_answer_at_its_next_token(pair: Pair) -> None:
    ear = Ear(stop_after=2)
    pair.converted.submit(_request(SENTENCES[0]), ear.cancel, ear)
    assert isinstance(ear.wait(), Cancelled)
    assert len(ear.deltas) == 2
    assert pair.converted.statistics().most_steps_after_cancel <= 1
    assert pair.converted.statistics().active_requests == 0


class Broken(Ear):
    """Fails at the first text of its answer."""

    def on_delta(self, text: str) -> None:
        raise RuntimeError("nobody takes this")


@dataclass
class Held(Ear):
    """Keeps the loop from its next batch until it may go on."""

    begun: threading.Event = field(default_factory=threading.Event)
    may_go_on: threading.Event = field(default_factory=threading.Event)

    def on_delta(self, text: str) -> None:
        self.begun.set()
        assert self.may_go_on.wait(60)


@dataclass
class Counting(Ear):
    """Counts its ends."""

    ends: int = 0

    def on_end(self, outcome: Outcome) -> None:
        self.ends += 1
        super().on_end(outcome)


@pytest.mark.parametrize("beams", [1, 3])
def test_one_callers_fault_ends_no_answer_of_others(pair: Pair, beams: int) -> None:
    request = _request(SENTENCES[0], num_beams=beams)
    (expected,) = _answers(pair.converted, [request])
    left, broken, other = Counting(), Broken(), Counting()
    first = Counting(cancel=left.cancel, stop_after=1)  # it has the next one leave while their batch runs
    held = Held()
    pair.converted.submit(_request(SENTENCES[0]), held.cancel, held)
    assert held.begun.wait(60)  # else it and the others could be one batch
    for ear, cancel in ((first, Cancellation()), (left, left.cancel), (broken, broken.cancel)):
        pair.converted.submit(request, cancel, ear)
    pair.converted.submit(request, other.cancel, other)
    while pair.converted._loop.statistics(0).waiting < 4:  # they are one batch, after the one that is held
        time.sleep(0.001)
    held.may_go_on.set()
    for answer in (first.wait(), other.wait()):
        assert isinstance(answer, Answer)
        assert (answer.text, answer.cost.batch_rows) == (expected.text, 4 * beams)
    assert isinstance(left.wait(), Cancelled)
    assert isinstance(broken.wait(), Cancelled)
    assert [ear.ends for ear in (first, left, other)] == [1, 1, 1]


def test_who_leaves_before_there_is_a_prompt_ends_nothing_else(pair: Pair) -> None:
    gone = Counting()
    gone.cancel.cancel()
    pair.converted.submit(_request(SENTENCES[0]), gone.cancel, gone)
    assert isinstance(gone.wait(), Cancelled)
    (answer,) = _answers(pair.converted, [_request(SENTENCES[0])])
    assert answer.completion_tokens
    assert gone.ends == 1


def test_it_says_what_it_is_and_what_it_cannot_do(pair: Pair) -> None:
    description = pair.converted.describe()
    assert (description.engine, description.dtype) == ("ctranslate2", "float32")
    assert Augmentation.FUSION_IN_DECODER not in description.augmentations
    ear = Ear()
    pair.converted.submit(_request(SENTENCES[0], temperature=0.7), ear.cancel, ear)
    outcome = ear.wait()
    assert isinstance(outcome, InvalidField)
    assert outcome.field == "decoding.temperature"


def test_a_model_it_does_not_know_is_named(tmp_path: Path) -> None:
    folder = tiny_models.bart(tmp_path / "bart")
    with pytest.raises(ModelError, match="generation settings"):
        _assembled(folder, "ctranslate2")


def test_what_waits_at_the_end_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    engine = _assembled(tiny_models.t5(tmp_path / "t5"), "ctranslate2")
    engine.close()
    ear = Ear()
    engine.submit(_request(SENTENCES[0]), ear.cancel, ear)
    outcome = ear.wait()
    assert isinstance(outcome, MeshError)
    assert outcome.reason == "STOPPED"


def test_the_gpu_and_the_folder_are_those_of_the_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The index of the device is passed on, and the conversion is in the folder of the settings."""
    folder = tiny_models.t5(tmp_path / "t5")
    given: dict[str, Any] = {}

    def record(path: str, **kwargs: Any) -> object:
        given.update(kwargs, path=Path(path))
        return object()

    monkeypatch.setattr(ctranslate2, "Translator", record)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for device, index in (("cuda:1", 1), ("cuda", 0), ("cpu", 0)):
        made = ConvertedModel(
            folder,
            "v",
            tiny_models.plain(folder)[1],
            encodes=True,
            dtype="float32",
            device=torch.device(device),
            threads=1,
            conversions=tmp_path / "conversions",
            length_penalty=1.0,
        )
        assert (given["device"], given["device_index"]) == (torch.device(device).type, index)
        assert made.device == device
    assert given["path"].parent == tmp_path / "conversions"
    assert (given["path"] / "model.bin").is_file()
    assert not (tmp_path / "cache").exists()
