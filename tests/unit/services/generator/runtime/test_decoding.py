"""Tokens are those of plain ``model.generate``; log-probabilities those of a teacher-forced pass."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy.stats import chisquare

from meshkit.deadline import Deadline
from meshkit.errors import DeadlineExceeded
from services.generator.backends import decoding
from services.generator.runtime.decoding import Decoder, Sampler, Written
from services.generator.domain import Decoding
from services.generator.ports import Cancellation, Cancelled
from tests.tiny_models import SENTENCES, plain

KINDS = ["t5", "bart", "llama"]
NEW = 16


class Subject:
    """A decoder and a plain copy of its model."""

    def __init__(self, folder: Path) -> None:
        self.model, self.tokenizer = plain(folder)
        self.reference, _ = plain(folder)
        self.encodes = self.model.config.is_encoder_decoder
        self.pad = self.tokenizer.pad_token_id
        self.pad = self.tokenizer.eos_token_id if self.pad is None else self.pad
        self.decoder = Decoder(self.model, pad=self.pad, ends=[self.tokenizer.eos_token_id])

    def inputs(self, *texts: str) -> dict[str, Any]:
        rows = [self.tokenizer(text).input_ids for text in texts]
        side = "right" if self.encodes else "left"
        tensors = [torch.tensor(row) for row in rows]
        ids = torch.nn.utils.rnn.pad_sequence(tensors, True, self.pad, side)
        mask = torch.nn.utils.rnn.pad_sequence([torch.ones_like(row) for row in tensors], True, 0, side)
        if not self.encodes:
            return {"input_ids": ids, "attention_mask": mask}
        with torch.inference_mode():
            states = self.model.get_encoder()(input_ids=ids, attention_mask=mask)
        start = torch.full((len(rows), 1), self.model.generation_config.decoder_start_token_id)
        return {"encoder_outputs": states, "attention_mask": mask, "decoder_input_ids": start}

    def write(self, *texts: str, decoding: Decoding, **kwargs: Any) -> list[Written]:
        return self.decoder.write(
            self.inputs(*texts),
            [decoding] * len(texts),
            texts,
            kwargs.pop("cancel", Cancellation()),
            **kwargs,
        )

    def expected(self, text: str, num_beams: int) -> list[int]:
        """What a user of transformers gets: new tokens up to and with the first end token."""
        encoded = self.tokenizer(text, return_tensors="pt", return_token_type_ids=False)
        out = self.reference.generate(
            **encoded, num_beams=num_beams, do_sample=False, max_new_tokens=NEW, pad_token_id=self.pad
        )[0].tolist()
        new = out[1:] if self.encodes else out[encoded.input_ids.shape[1] :]
        end = self.tokenizer.eos_token_id
        return new[: new.index(end) + 1] if end in new else new

    @torch.inference_mode()
    def teacher_forced(self, text: str, new: list[int]) -> float:
        """Sum of log-probabilities of ``new`` after ``text``, from one pass of the plain model."""
        prompt = self.tokenizer(text).input_ids
        if self.encodes:
            start = self.reference.generation_config.decoder_start_token_id
            logits = self.reference(
                input_ids=torch.tensor([prompt]), decoder_input_ids=torch.tensor([[start, *new[:-1]]])
            ).logits[0]
        else:
            logits = self.reference(input_ids=torch.tensor([[*prompt, *new[:-1]]])).logits[
                0, len(prompt) - 1 :
            ]
        return float(logits.double().log_softmax(-1)[range(len(new)), new].sum())


@pytest.fixture(scope="module")
def subjects(folders: dict[str, Path]) -> dict[str, Subject]:
    return {kind: Subject(folders[kind]) for kind in KINDS}


@pytest.mark.parametrize("num_beams", [1, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_tokens_are_those_of_plain_generate(subjects: dict[str, Subject], kind: str, num_beams: int) -> None:
    subject = subjects[kind]
    decoding = Decoding(num_beams=num_beams, max_new_tokens=NEW)
    answers = []
    for text in SENTENCES:
        expected = subject.expected(text, num_beams)
        (written,) = subject.write(text, decoding=decoding)
        closed = expected[-1] == subject.tokenizer.eos_token_id
        assert written.text_ids == tuple(expected[:-1] if closed else expected)
        assert written.tokens == len(expected)
        assert written.log_probability == pytest.approx(subject.teacher_forced(text, expected), abs=1e-4)
        answers.append(written)
    assert len({answer.text_ids for answer in answers}) == len(SENTENCES), "the comparison would be vacuous"


@pytest.mark.parametrize("num_beams", [1, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_writes_what_each_row_writes_alone(
    subjects: dict[str, Subject], kind: str, num_beams: int
) -> None:
    subject = subjects[kind]
    decoding = Decoding(num_beams=num_beams, max_new_tokens=NEW)
    together = subject.write(*SENTENCES, decoding=decoding)
    for text, written in zip(SENTENCES, together, strict=True):
        (alone,) = subject.write(text, decoding=decoding)
        assert (written.text_ids, written.tokens, written.ended) == (
            alone.text_ids,
            alone.tokens,
            alone.ended,
        )
        assert written.log_probability == pytest.approx(alone.log_probability, abs=1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_scores_of_beams_are_the_same_in_small_parts(
    subjects: dict[str, Subject], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pass per row instead of one for all, as for large vocabularies."""
    decoding_ = Decoding(num_beams=2, max_new_tokens=8)
    whole = subjects[kind].write(*SENTENCES[:4], decoding=decoding_)
    monkeypatch.setattr(decoding, "_MOST_LOGITS", 1)
    parts = subjects[kind].write(*SENTENCES[:4], decoding=decoding_)
    assert [one.text_ids for one in parts] == [one.text_ids for one in whole]
    for part, one in zip(parts, whole, strict=True):
        assert part.log_probability == pytest.approx(one.log_probability, abs=1e-3)


def test_some_answers_end_and_some_run_out(subjects: dict[str, Subject]) -> None:
    for kind in ("t5", "llama"):
        ended = {w.ended for w in subjects[kind].write(*SENTENCES, decoding=Decoding(max_new_tokens=NEW))}
        assert ended == {True, False}


def test_a_forced_end_is_no_end_of_the_models_own(subjects: dict[str, Subject]) -> None:
    """This BART's settings force the end token at the length limit."""
    written = subjects["bart"].write(*SENTENCES, decoding=Decoding(max_new_tokens=5))
    assert all(one.tokens <= 5 for one in written)
    assert any(one.tokens == 5 and len(one.text_ids) == 4 and not one.ended for one in written)


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_come_one_by_one(subjects: dict[str, Subject], kind: str) -> None:
    seen: list[int] = []
    steps: list[int] = []
    subject = subjects[kind]
    hook = subject.model.register_forward_hook(lambda *_: steps.append(len(seen)))
    try:
        (written,) = subject.write(SENTENCES[0], decoding=Decoding(max_new_tokens=NEW), on_token=seen.append)
    finally:
        hook.remove()
    assert tuple(seen) == written.text_ids
    assert steps == list(range(len(steps))), "every token is handed out before the next step begins"


@pytest.mark.parametrize("num_beams", [1, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_nobody_waits_any_more(subjects: dict[str, Subject], kind: str, num_beams: int) -> None:
    """Cancelled in step 3: the model runs no step 4."""
    subject = subjects[kind]
    cancel = Cancellation()
    steps = 0

    def count(*_: Any) -> None:
        nonlocal steps
        steps += 1
        if steps == 3:
            cancel.cancel()

    hook = subject.model.register_forward_hook(count)
    try:
        with pytest.raises(Cancelled):
            subject.write(
                SENTENCES[0], decoding=Decoding(num_beams=num_beams, max_new_tokens=NEW), cancel=cancel
            )
    finally:
        hook.remove()
    assert steps == 3


def test_a_deadline_that_passed_stops_the_model(subjects: dict[str, Subject]) -> None:
    with pytest.raises(DeadlineExceeded):
        subjects["t5"].write(
            SENTENCES[0], decoding=Decoding(max_new_tokens=NEW), cancel=Cancellation(Deadline.after(0))
        )


@pytest.mark.parametrize("kind", KINDS)
def test_sampling_depends_on_seed_and_stream_alone(subjects: dict[str, Subject], kind: str) -> None:
    subject = subjects[kind]

    def drawn(seed: int, *texts: str) -> list[tuple[int, ...]]:
        torch.manual_seed(len(texts))  # the global generator has no say
        decoding = Decoding(max_new_tokens=NEW, temperature=1.5, seed=seed)
        return [one.text_ids for one in subject.write(*texts, decoding=decoding)]

    alone = [drawn(7, text)[0] for text in SENTENCES[:4]]
    assert drawn(7, *SENTENCES[:4]) == alone
    assert drawn(7, *reversed(SENTENCES[:4])) == alone[::-1]
    assert [drawn(8, text)[0] for text in SENTENCES[:4]] != alone
    greedy = subject.write(*SENTENCES[:4], decoding=Decoding(max_new_tokens=NEW))
    assert [one.text_ids for one in greedy] != alone


def test_sampled_log_probability_is_the_models_own(subjects: dict[str, Subject]) -> None:
    """Not that of the distribution it was drawn from, which temperature and nucleus changed."""
    subject = subjects["llama"]
    (written,) = subject.write(
        SENTENCES[1], decoding=Decoding(max_new_tokens=NEW, temperature=0.7, top_p=0.8, seed=1)
    )
    new = [*written.text_ids, subject.tokenizer.eos_token_id][: written.tokens]
    assert written.log_probability == pytest.approx(subject.teacher_forced(SENTENCES[1], new), abs=1e-4)


def _draws(logits: list[float], decoding: Decoding, count: int = 4000) -> Counter[int]:
    sampler = Sampler(decoding, "stream")
    return Counter(sampler.draw(torch.tensor(logits)) for _ in range(count))


def test_draws_follow_the_tempered_distribution() -> None:
    """P(i) ∝ p_i^(1/T) with p = (.5, .3, .2) and T = 2."""
    weights = [0.5**0.5, 0.3**0.5, 0.2**0.5]
    counts = _draws([math.log(0.5), math.log(0.3), math.log(0.2)], Decoding(temperature=2.0, seed=5))
    expected = [4000 * weight / sum(weights) for weight in weights]
    assert chisquare([counts[0], counts[1], counts[2]], expected).pvalue > 0.001


@pytest.mark.parametrize(
    ("top_p", "kept"),
    [(0.01, {0}), (0.49, {0}), (0.51, {0, 1}), (0.79, {0, 1}), (0.81, {0, 1, 2}), (1.0, {0, 1, 2})],
)
def test_the_nucleus_is_the_smallest_set_that_reaches_the_mass(top_p: float, kept: set[int]) -> None:
    """p = (0.5, 0.3, 0.2): the masses are 0.5, 0.8 and 1."""
    logits = [math.log(0.5), math.log(0.3), math.log(0.2)]
    assert set(_draws(logits, Decoding(temperature=1.0, top_p=top_p, seed=1), 300)) == kept


def test_forbidden_tokens_are_never_drawn() -> None:
    counts = _draws([0.0, -math.inf, 0.0], Decoding(temperature=10.0, seed=3), 500)
    assert set(counts) == {0, 2}
