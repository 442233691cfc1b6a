"""What the running batch writes is what each request alone, and plain ``model.generate``, writes."""

from __future__ import annotations

import copy
import math
import random
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import grpc
import numpy as np
import pytest
import torch

from evenmesh.wire.deadline import Deadline
from evenmesh.wire.errors import DeadlineExceeded, MeshError, Unavailable
from evenmesh_generator.domain import Answer, Decoding, FinishReason, GenerationRequest
from evenmesh_generator.ports import Cancellation, Cancelled
from evenmesh_generator.runtime.decoding.model_rules import model_rules
from evenmesh_generator.runtime.decoding.sampler import Sampler
from evenmesh_generator.runtime.loops import decoding_loop
from evenmesh_generator.runtime.loops.decoding_loop import DecodingLoop, Limits, SmallPieces
from evenmesh_generator.runtime.networks.attention import ATTENTION
from evenmesh_generator.runtime.networks.causal import CausalNetwork
from evenmesh_generator.runtime.networks.protocol import Demand, Joining, Network, Prefill, Prompt, Rows
from evenmesh_generator.runtime.networks.seq2seq import Seq2SeqNetwork
from evenmesh_generator.runtime.networks.static_batching import StaticCausalNetwork, StaticSeq2SeqNetwork
from evenmesh_generator.runtime.pointer_engines import torch_network
from evenmesh_generator.runtime.tasks import Judgement, Task
from tests.support import tiny_models
from tests.support.tiny_engines import Ear
from tests.support.tiny_models import SENTENCES, plain

KINDS = ["t5", "bart", "llama", "pointer"]
NEW = 16
ROOMY = Limits(64, 2**30, 8192, 1024)


EXPECTED: dict[tuple[str, str, Prompt, Decoding], list[int]] = {}
"""What plain models wrote, by the kind of model, its settings and what was asked: the same in all tests."""


class Ids:
    """Text that is the token ids."""

    ended = False

    def __init__(self) -> None:
        self.text = ""

    def push(self, token: int) -> str:
        self.text += f"{token} "
        return f"{token} "

    def finish(self) -> str:
        return ""

    @property
    def span(self) -> None:
        return None

    def confidence(self, log_probabilities: Sequence[float]) -> None:
        assert log_probabilities  # of every token


@dataclass(frozen=True)
class Written:
    """An answer's tokens without its end, and the rest of it."""

    ids: tuple[int, ...]
    answer: Answer


class Subject:
    """A model with a loop, and a copy of it that knows nothing of loops."""

    def __init__(self, kind: str, folder: Path | None) -> None:
        self.kind = kind
        self._settings: dict[str, Any] = {}
        if folder is None:
            reader = tiny_models.pointer()
            self.model: Any = reader.model
            self.reference: Any = tiny_models.pointer().model
            self.prompts = [
                Prompt(
                    tuple(
                        (101, *reader.tokenizer.ids(text), 102) for text in SENTENCES[at : at + 1 + at % 3]
                    ),
                    (1,),
                    (2,) * len(SENTENCES[at : at + 1 + at % 3]),
                )
                for at in range(len(SENTENCES))
            ]
            self.end, self.pad = 102, 0
        else:
            self.model, tokenizer = plain(folder)
            self.reference, _ = plain(folder)
            self.end = tokenizer.eos_token_id
            self.pad = self.end if tokenizer.pad_token_id is None else tokenizer.pad_token_id
            start = self.model.generation_config.decoder_start_token_id
            texts = SENTENCES if start is not None else [" ".join(SENTENCES[at::4]) for at in range(8)]
            self.prompts = [
                Prompt((tuple(tokenizer(text).input_ids),), () if start is None else (start,))
                for text in texts
            ]
        self._adopt()

    def with_settings(self, settings: dict[str, Any]) -> Subject:
        """The same models with other settings, loaded no second time."""
        other = copy.copy(self)
        other._settings = settings
        other.model, other.reference = copy.deepcopy((self.model, self.reference))
        other._adopt()
        return other

    def _adopt(self) -> None:
        for model in (self.model, self.reference):
            model.generation_config.update(**self._settings)
        self.rules = model_rules(self.model, pad=self.pad, ends=[self.end])
        self.network = self.made()

    def made(self, cache_bytes: int = 0, *, batch_tokens: int = 8192) -> Any:
        """A network of the model."""
        kept = {"batch_tokens": batch_tokens, "cache_bytes": cache_bytes}
        if self.kind == "pointer":
            return torch_network(self.model, dtype=torch.float32, **kept)
        self.model.set_attn_implementation(ATTENTION)
        network = CausalNetwork if self.kind == "llama" else Seq2SeqNetwork
        return network(self.model, pad=self.pad, **kept)

    def expected(self, prompt: Prompt, decoding: Decoding) -> list[int]:
        """What a user of transformers gets: new tokens up to and with the first end token."""
        key = (self.kind, repr(self._settings), prompt, decoding)
        if key not in EXPECTED:
            EXPECTED[key] = self._expected(prompt, decoding)
        return EXPECTED[key]

    def _expected(self, prompt: Prompt, decoding: Decoding) -> list[int]:
        settings = {
            "num_beams": decoding.num_beams,
            "do_sample": False,
            "max_new_tokens": decoding.max_new_tokens,
            "pad_token_id": self.pad,
        }
        if self.kind == "pointer":
            ids = torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in prompt.rows], True)
            lengths = torch.tensor([len(row) for row in prompt.rows])[:, None]
            at = torch.arange(ids.shape[1])
            types = ((at >= 2) & (at < lengths)).long()
            with torch.inference_mode():
                source = self.reference.encoder(ids[None], (at < lengths)[None], types[None])
            mask = source.source_mask.long()
            out = self.reference.generate(encoder_outputs=source, attention_mask=mask, **settings)
        else:
            out = self.reference.generate(input_ids=torch.tensor(prompt.rows), **settings)
        new = out[0].tolist()[len(prompt.start or prompt.rows[0]) :]
        return new[: new.index(self.end) + 1] if self.end in new else new

    @torch.inference_mode()
    def teacher_forced(self, prompt: Prompt, new: Sequence[int]) -> float:
        """Sum of log-probabilities of ``new``, from one pass of the plain model."""
        ids = torch.tensor([list(prompt.rows[0])])
        if self.kind == "llama":
            logits = self.reference(input_ids=torch.cat([ids, torch.tensor([new[:-1]]).long()], 1)).logits
            logits = logits[0, ids.shape[1] - 1 :]
        else:
            decoder = torch.tensor([[*prompt.start, *new[:-1]]])
            logits = self.reference(input_ids=ids, decoder_input_ids=decoder).logits[0]
        return float(logits.double().log_softmax(-1)[range(len(new)), list(new)].sum())


class Desk:
    """A loop and those who ask it."""

    def __init__(
        self,
        subject: Subject,
        network: Network[Any] | None = None,
        limits: Limits = ROOMY,
        *,
        continuous: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.loop = DecodingLoop(
            "test", network or subject.network, subject.rules, limits, continuous=continuous, clock=clock
        )

    def ask(
        self, prompt: Prompt, decoding: Decoding, cancel: Cancellation | None = None, question: str = "q"
    ) -> Ear:
        """Puts a request and does not wait."""
        ear = Ear()
        request = GenerationRequest(question, decoding=decoding)
        self.loop.put(Task(request, cancel or Cancellation(), ear, prompt=prompt, transcript=Ids()))
        return ear

    def close(self) -> None:
        self.loop.close()


def _let_run(desk: Desk, steps: int, ears: Sequence[Ear]) -> None:
    """Waits for some steps, or for all to end."""
    target = desk.loop.statistics(0).steps + steps
    while desk.loop.statistics(0).steps < target and not all(ear.ends for ear in ears):
        time.sleep(0.0005)


def received(ear: Ear) -> Written:
    outcome = ear.outcome()
    if isinstance(outcome, Exception):
        raise outcome
    assert "".join(ear.deltas) == outcome.text
    return Written(tuple(map(int, outcome.text.split())), outcome)


@pytest.fixture
def opened() -> Iterator[Callable[..., Desk]]:
    desks: list[Desk] = []

    def make(*args: Any, **kwargs: Any) -> Desk:
        desks.append(Desk(*args, **kwargs))
        return desks[-1]

    yield make
    for desk in desks:
        desk.close()


@pytest.fixture(scope="module")
def subjects(folders: dict[str, Path]) -> dict[str, Subject]:
    return {kind: Subject(kind, folders.get(kind)) for kind in KINDS}


@pytest.mark.parametrize("num_beams", [1, 2, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_tokens_are_those_of_plain_generate(
    subjects: dict[str, Subject], opened: Callable[..., Desk], kind: str, num_beams: int
) -> None:
    """All prompts at once, of several lengths: none changes what another writes."""
    subject = subjects[kind]
    desk = opened(subject)
    decoding = Decoding(num_beams=num_beams, max_new_tokens=NEW)
    ears = [desk.ask(prompt, decoding) for prompt in subject.prompts]
    found = []
    for prompt, ear in zip(subject.prompts, ears, strict=True):
        expected = subject.expected(prompt, decoding)
        written = received(ear)
        closed = expected[-1] == subject.end
        assert written.ids == tuple(expected[:-1] if closed else expected)
        assert written.answer.completion_tokens == len(expected)
        if kind != "pointer":
            forced = subject.teacher_forced(prompt, expected)
            assert written.answer.log_probability == pytest.approx(forced, rel=1e-4)
        found.append(written.ids)
    assert len(set(found)) > len(SENTENCES) // 2, "the comparison would be vacuous"
    statistics = desk.loop.statistics(0)
    assert statistics.finished == len(SENTENCES)
    assert (statistics.active_requests, statistics.active_rows, statistics.waiting) == (0, 0, 0)


@pytest.mark.parametrize("early_stopping", [False, True, "never"])
@pytest.mark.parametrize("length_penalty", [-1.0, 0.0, 1.0, 2.5])
@pytest.mark.parametrize("kind", ["t5", "llama"])
def test_beam_search_keeps_the_models_settings(
    subjects: dict[str, Subject],
    opened: Callable[..., Desk],
    kind: str,
    length_penalty: float,
    early_stopping: bool | str,
) -> None:
    settings = {"length_penalty": length_penalty, "early_stopping": early_stopping}
    subject = subjects[kind].with_settings(settings)
    desk = opened(subject)
    prompts = subject.prompts[:4]
    for num_beams in (2, 5):
        decoding = Decoding(num_beams=num_beams, max_new_tokens=NEW)
        ears = [desk.ask(prompt, decoding) for prompt in prompts]
        for prompt, ear in zip(prompts, ears, strict=True):
            expected = subject.expected(prompt, decoding)
            closed = expected[-1] == subject.end
            assert received(ear).ids == tuple(expected[:-1] if closed else expected)


@pytest.mark.parametrize(
    "settings",
    [
        {"no_repeat_ngram_size": 2},
        {"min_new_tokens": 9},
        {"repetition_penalty": 1.7},
        {"suppress_tokens": [5, 9, 31], "bad_words_ids": [[12], [13, 14]]},
        {"forced_eos_token_id": 1},
    ],
    ids=["no-repeats", "least-length", "penalty", "forbidden", "forced-end"],
)
@pytest.mark.parametrize("kind", ["t5", "llama"])
def test_rules_of_the_model_hold(
    subjects: dict[str, Subject], opened: Callable[..., Desk], kind: str, settings: dict[str, Any]
) -> None:
    subject = subjects[kind].with_settings(settings)
    desk = opened(subject)
    prompts = subject.prompts[2:6]
    for decoding in (Decoding(max_new_tokens=12), Decoding(num_beams=3, max_new_tokens=12)):
        ears = [desk.ask(prompt, decoding) for prompt in prompts]
        for prompt, ear in zip(prompts, ears, strict=True):
            expected = subject.expected(prompt, decoding)
            written = received(ear)
            closed = expected[-1] == subject.end
            assert written.ids == tuple(expected[:-1] if closed else expected)
            forced = subject.teacher_forced(prompt, expected)
            assert written.answer.log_probability == pytest.approx(forced, rel=1e-4), "the model's own"


def test_a_forced_end_is_no_end_of_the_models_own(
    subjects: dict[str, Subject], opened: Callable[..., Desk]
) -> None:
    """This BART's settings force the end token at the length limit."""
    desk = opened(subjects["bart"])
    ears = [desk.ask(prompt, Decoding(max_new_tokens=5)) for prompt in subjects["bart"].prompts]
    answers = [received(ear) for ear in ears]
    assert all(one.answer.completion_tokens <= 5 for one in answers)
    assert any(
        len(one.ids) == 4
        and one.answer.completion_tokens == 5
        and one.answer.finish_reason is FinishReason.LENGTH
        for one in answers
    )


def _mixed(subject: Subject, seed: int, count: int) -> list[tuple[Prompt, Decoding]]:
    rng = random.Random(seed)
    return [
        (
            rng.choice(subject.prompts),
            rng.choice(
                [
                    Decoding(max_new_tokens=rng.randint(1, 24)),
                    Decoding(max_new_tokens=rng.randint(1, 24), temperature=1.5, top_p=0.9, seed=at),
                    Decoding(max_new_tokens=rng.randint(1, 16), num_beams=rng.choice([2, 3, 4, 8])),
                ]
            ),
        )
        for at in range(count)
    ]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", KINDS)
def test_joining_and_leaving_change_nothing(
    subjects: dict[str, Subject], opened: Callable[..., Desk], kind: str, seed: int
) -> None:
    """Requests of all kinds, put at random moments into a batch with room for few, some given up."""
    subject = subjects[kind]
    asked = _mixed(subject, seed, 16)
    alone_desk = opened(subject)
    alone = [received(alone_desk.ask(prompt, decoding)) for prompt, decoding in asked]
    rng = random.Random(seed)
    network = subject.made(cache_bytes=2**20 if seed else 0)
    desk = opened(subject, network, replace(ROOMY, rows=13, chunk_tokens=rng.choice([1, 40, 1024])))
    ears = []
    for prompt, decoding in asked:
        ears.append(desk.ask(prompt, decoding))
        if rng.random() < 0.3:
            cancel = Cancellation()
            desk.ask(rng.choice(subject.prompts), Decoding(max_new_tokens=200, temperature=3.0), cancel)
            threading.Timer(rng.random() / 30, cancel.cancel).start()
        if rng.random() < 0.5:
            _let_run(desk, rng.randint(1, 5), ears)
    for ear, one in zip(ears, alone, strict=True):
        together = received(ear)
        assert together.ids == one.ids
        assert together.answer.finish_reason is one.answer.finish_reason
        assert together.answer.log_probability == pytest.approx(one.answer.log_probability, abs=1e-3)
    assert desk.loop.statistics(0).step_rows > desk.loop.statistics(0).steps


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_kept_changes_nothing_and_is_counted(
    subjects: dict[str, Subject], opened: Callable[..., Desk], kind: str
) -> None:
    subject = subjects[kind]
    cold, warm = opened(subject), opened(subject, subject.made(cache_bytes=2**24))
    decoding = Decoding(max_new_tokens=8)
    for times in range(2):
        for prompt in subject.prompts:
            first, second = received(cold.ask(prompt, decoding)), received(warm.ask(prompt, decoding))
            assert first.ids == second.ids
            cost = second.answer.cost
            assert cost.computed_tokens + cost.reused_tokens == prompt.tokens
            if times:
                assert cost.reused_tokens >= (0 if kind == "llama" else prompt.tokens)
            assert first.answer.cost.computed_tokens == prompt.tokens
    assert warm.loop.statistics(0).cache_bytes > 0
    assert warm.loop.statistics(0).reused_tokens > 0
    assert cold.loop.statistics(0).cache_bytes == 0
    assert cold.loop.statistics(0).reused_tokens == 0


def test_a_common_prefix_is_read_once(subjects: dict[str, Subject], opened: Callable[..., Desk]) -> None:
    """Together or one after the other: 64 tokens alike, then 5 of each prompt's own."""
    subject = subjects["llama"]
    rng = random.Random(0)
    common = [rng.randrange(5, 200) for _ in range(64)]
    prompts = [Prompt(((*common, *(rng.randrange(5, 200) for _ in range(5))),)) for _ in range(4)]
    cold = opened(subject)
    expected = [received(cold.ask(prompt, Decoding(max_new_tokens=6))).ids for prompt in prompts]
    assert len(set(expected)) > 1
    desk = opened(subject, subject.made(cache_bytes=2**24))
    ears = [desk.ask(prompt, Decoding(max_new_tokens=6)) for prompt in prompts]
    assert [received(ear).ids for ear in ears] == expected
    statistics = desk.loop.statistics(0)
    assert statistics.reused_tokens == 3 * 64
    assert statistics.computed_tokens == 64 + 4 * 5


@pytest.mark.parametrize("kind", ["t5", "bart", "llama"])
def test_static_batches_write_the_same(
    subjects: dict[str, Subject], opened: Callable[..., Desk], kind: str
) -> None:
    """Models without continuous batching, with the library's own cache."""
    subject = subjects[kind].with_settings({})
    subject.model.set_attn_implementation("sdpa")
    network = (
        StaticCausalNetwork(subject.model, pad=subject.pad)
        if kind == "llama"
        else StaticSeq2SeqNetwork(subject.model, pad=subject.pad, batch_tokens=8192, cache_bytes=0)
    )
    desk = opened(subject, network, continuous=False)
    for num_beams in (1, 4):
        decoding = Decoding(num_beams=num_beams, max_new_tokens=NEW)
        ears = [desk.ask(prompt, decoding) for prompt in subject.prompts]
        for prompt, ear in zip(subject.prompts, ears, strict=True):
            expected = subject.expected(prompt, decoding)
            closed = expected[-1] == subject.end
            assert received(ear).ids == tuple(expected[:-1] if closed else expected)


@pytest.mark.parametrize("num_beams", [1, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_nobody_waits_any_more(
    subjects: dict[str, Subject], opened: Callable[..., Desk], kind: str, num_beams: int
) -> None:
    """The model stops within two steps, and the next request has its rows."""
    subject = subjects[kind]
    desk = opened(subject, limits=replace(ROOMY, rows=num_beams))
    cancel = Cancellation()
    long = Decoding(num_beams=num_beams, max_new_tokens=400, temperature=0.0 if num_beams > 1 else 4.0)
    ear = desk.ask(subject.prompts[0], long, cancel)
    _let_run(desk, 3, [ear])
    assert not ear.ends
    cancel.cancel()
    assert isinstance(ear.outcome(), Cancelled)
    received(desk.ask(subject.prompts[1], Decoding(num_beams=num_beams, max_new_tokens=3)))
    statistics = desk.loop.statistics(0)
    assert statistics.most_steps_after_cancel <= 2
    assert (statistics.cancelled, statistics.active_rows) == (1, 0)


class Movable(Deadline):
    """A deadline that passes when a test says so, however fast the machine is."""

    __slots__ = ()

    def passes(self) -> None:
        self._at = time.monotonic()


def test_a_deadline_that_passed(subjects: dict[str, Subject], opened: Callable[..., Desk]) -> None:
    desk = opened(subjects["t5"])
    ear = desk.ask(subjects["t5"].prompts[0], Decoding(), Cancellation(Deadline.after(0)))
    assert isinstance(ear.outcome(), DeadlineExceeded)
    deadline = Movable(time.monotonic() + 3600)
    running = desk.ask(
        subjects["t5"].prompts[0], Decoding(max_new_tokens=400, temperature=5.0), Cancellation(deadline)
    )
    _let_run(desk, 3, [running])
    deadline.passes()
    assert isinstance(running.outcome(), DeadlineExceeded)


@pytest.mark.parametrize("kind", KINDS)
def test_two_hundred_that_gave_up_leave_nothing(
    subjects: dict[str, Subject], opened: Callable[..., Desk], kind: str
) -> None:
    subject = subjects[kind]
    network = subject.made(cache_bytes=2**20)
    desk = opened(subject, network, replace(ROOMY, rows=16))
    for prompt in subject.prompts:
        received(desk.ask(prompt, Decoding(max_new_tokens=2)))
    kept = desk.loop.statistics(0).cache_bytes
    threads = threading.active_count()
    rng = random.Random(0)
    ears = []
    for at in range(200):
        cancel = Cancellation()
        decoding = Decoding(max_new_tokens=300, temperature=3.0, seed=at)
        if at % 3 == 0:
            decoding = Decoding(max_new_tokens=300, num_beams=4)
        ears.append(desk.ask(rng.choice(subject.prompts), decoding, cancel))
        if at % 4 == 0:
            _let_run(desk, 1, ears)
        cancel.cancel()
    outcomes = [ear.outcome() for ear in ears]
    assert sum(isinstance(one, Cancelled) for one in outcomes) > 150
    received(desk.ask(subject.prompts[0], Decoding(max_new_tokens=2)))
    statistics = desk.loop.statistics(0)
    assert (statistics.active_requests, statistics.active_rows, statistics.waiting) == (0, 0, 0)
    assert statistics.most_steps_after_cancel <= 2
    assert statistics.cache_bytes == kept
    assert not desk.loop._parts
    assert threading.active_count() <= threads


class Failing:
    """A network whose steps or passes fail when asked to, and that notes the threads of its steps."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.threads: set[str] = set()
        self.fail_steps: list[Exception] = []
        self.spoil_steps = 0
        """Steps whose first row gets no numbers."""
        self.bad_row: tuple[int, ...] | None = None
        self.fail_settling: list[Exception] = []
        self.fail_reading: list[Exception] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def advance(self, prefills: Sequence[Prefill], most_tokens: int) -> None:
        if any(self.bad_row in one.prompt.rows for one in prefills):
            raise torch.OutOfMemoryError("no room")
        self._inner.advance(prefills, most_tokens)

    def rows(self) -> Rows:
        return _FailingRows(self, self._inner.rows())

    def prefill(self, prompt: Prompt) -> Prefill:
        if self.fail_reading:
            raise self.fail_reading.pop()
        prefill: Prefill = self._inner.prefill(prompt)
        return prefill


class _FailingRows:
    def __init__(self, network: Failing, inner: Rows) -> None:
        self._network = network
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def planned(self, joining: Sequence[Demand]) -> int:
        return self._inner.planned(joining)

    def join(self, joining: Sequence[Joining]) -> None:
        self._inner.join(joining)

    def settle(self, *args: Any) -> None:
        if self._network.fail_settling:
            raise self._network.fail_settling.pop()
        self._inner.settle(*args)

    @property
    def bytes(self) -> int:
        return self._inner.bytes

    def step(self, tokens: Sequence[int]) -> torch.Tensor:
        self._network.threads.add(threading.current_thread().name)
        if self._network.fail_steps:
            raise self._network.fail_steps.pop()
        logits = self._inner.step(tokens)
        if self._network.spoil_steps:
            self._network.spoil_steps -= 1
            logits[0] = math.nan
        return logits


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_that_runs_out_of_memory_ends_its_requests_and_no_others(
    subjects: dict[str, Subject], opened: Callable[..., Desk], kind: str
) -> None:
    subject = subjects[kind]
    network: Any = Failing(subject.network)
    desk = opened(subject, network)
    network.fail_steps.append(torch.OutOfMemoryError("CUDA out of memory"))
    error = desk.ask(subject.prompts[0], Decoding(max_new_tokens=8)).outcome()
    assert isinstance(error, MeshError)
    assert (error.code.name, error.reason) == ("RESOURCE_EXHAUSTED", "OUT_OF_MEMORY")
    expected = subject.expected(subject.prompts[1], Decoding(max_new_tokens=8))
    closed = expected[-1] == subject.end
    found = received(desk.ask(subject.prompts[1], Decoding(max_new_tokens=8)))
    assert found.ids == tuple(expected[:-1] if closed else expected)
    statistics = desk.loop.statistics(0)
    assert (statistics.failed, statistics.finished, statistics.active_rows) == (1, 1, 0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "decoding",
    [
        Decoding(max_new_tokens=8),
        Decoding(num_beams=3, max_new_tokens=8),
        Decoding(max_new_tokens=8, temperature=1.0, seed=1),
    ],
    ids=["greedy", "beams", "sampled"],
)
def test_scores_that_are_no_numbers_end_their_request_and_no_other(
    subjects: dict[str, Subject], opened: Callable[..., Desk], kind: str, decoding: Decoding
) -> None:
    """A model that overflows its number type; its answer would be empty, and as probable as can be."""
    subject = subjects[kind]
    network: Any = Failing(subject.network)
    network.spoil_steps = 1
    desk = opened(subject, network)
    ears = [desk.ask(prompt, decoding) for prompt in subject.prompts[:2]]
    error, other = (ear.outcome() for ear in ears)
    assert isinstance(error, MeshError)
    assert (error.code.name, error.reason) == ("FAILED_PRECONDITION", "NO_NUMBERS")
    assert isinstance(other, Answer)
    assert other.text == received(desk.ask(subject.prompts[1], decoding)).answer.text


def test_scores_that_are_no_numbers_are_left_to_nobody(
    subjects: dict[str, Subject], opened: Callable[..., Desk]
) -> None:
    """A prompt makes a model overflow; then a shorter one takes its row, while a longer one is written."""
    subject = subjects["llama"].with_settings({})
    words = [token for prompt in subject.prompts for token in prompt.rows[0]]
    spoilt = next(token for token in range(5, 500) if token not in words)
    short = Prompt((tuple(words[:8]),))
    desk = opened(subject)
    alone = received(desk.ask(short, Decoding(max_new_tokens=6))).ids
    subject.model.get_input_embeddings().weight.data[spoilt] = math.nan
    longest = desk.ask(Prompt((tuple(words[:64]),)), Decoding(max_new_tokens=200))
    _let_run(desk, 2, [longest])
    assert isinstance(
        desk.ask(Prompt(((*words[:30], spoilt),)), Decoding(max_new_tokens=6)).outcome(), MeshError
    )
    assert received(desk.ask(short, Decoding(max_new_tokens=6))).ids == alone
    longest.outcome()


def test_words_of_other_contexts_and_rankings_are_other_draws(
    subjects: dict[str, Subject], opened: Callable[..., Desk], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One question and seed for all contexts of an ask, and for its rankings: `[seed, crc32(question)]`."""
    subject = subjects["t5"]
    desk = opened(subject)
    drawn: list[float] = []
    draw = Sampler.uniform
    monkeypatch.setattr(Sampler, "uniform", lambda self: drawn.append(draw(self)) or drawn[-1])
    how = Decoding(max_new_tokens=1, temperature=1.0, seed=7)
    for prompt in (subject.prompts[0], subject.prompts[1], subject.prompts[0]):
        desk.ask(prompt, how).outcome()
    rankings = float(np.random.default_rng([7, zlib.crc32(b"q")]).random())
    first, other, again = drawn
    assert first == again
    assert len({first, other, rankings}) == 3


@pytest.mark.parametrize("kind", ["t5", "llama"])
def test_rows_of_a_static_batch_may_leave_before_its_first_step(
    subjects: dict[str, Subject], kind: str
) -> None:
    """A caller hangs up while another tenant's piece of work is done."""
    subject = subjects[kind]
    network: Any = (
        StaticCausalNetwork(subject.model, pad=subject.pad)
        if kind == "llama"
        else StaticSeq2SeqNetwork(subject.model, pad=subject.pad, batch_tokens=8192, cache_bytes=0)
    )
    prefills = [network.prefill(prompt) for prompt in subject.prompts[:2]]
    network.advance(prefills, 8192)
    left, stays = network.begin(prefills)
    rows, alone = network.rows(), network.rows()
    rows.join([Joining(0, left, 1, 30), Joining(1, stays, 1, 30)])
    rows.settle([1], {1: range(1)}, {0: 1})
    alone.join([Joining(1, stays, 1, 30)])
    assert torch.equal(rows.step([0]), alone.step([0]))


def test_rows_that_cannot_be_given_back_end_their_batch_and_not_the_loop(
    subjects: dict[str, Subject], opened: Callable[..., Desk]
) -> None:
    """A caller hangs up, and the memory to rearrange what is left is not there."""
    subject = subjects["pointer"]
    network: Any = Failing(subject.network)
    desk = opened(subject, network)
    cancel, long = Cancellation(), Decoding(max_new_tokens=60, temperature=5.0)
    with desk.loop._changed:
        ears = [desk.ask(subject.prompts[0], long, cancel), desk.ask(subject.prompts[1], long)]
    _let_run(desk, 2, ears)
    network.fail_settling.append(torch.OutOfMemoryError("CUDA out of memory"))
    cancel.cancel()
    outcomes = [ear.outcome() for ear in ears]
    assert isinstance(outcomes[1], MeshError)
    assert outcomes[1].reason == "OUT_OF_MEMORY"
    received(desk.ask(subject.prompts[2], Decoding(max_new_tokens=4)))


@pytest.mark.parametrize("judges", [False, True])
def test_a_loop_that_fails_itself_ends_its_requests_and_goes_on(
    subjects: dict[str, Subject], opened: Callable[..., Desk], judges: bool
) -> None:
    subject = subjects["pointer"]
    network: Any = Failing(subject.network)
    desk = opened(subject, network)
    network.fail_reading.append(RuntimeError("broken"))
    if judges:
        judgement = Judgement([subject.prompts[0]], 1, 2, Cancellation())
        desk.loop.put(judgement)
        error = judgement.result.exception(timeout=60)
    else:
        error = desk.ask(subject.prompts[0], Decoding(max_new_tokens=4)).outcome()
    assert isinstance(error, MeshError)
    assert error.reason == "INTERNAL"
    received(desk.ask(subject.prompts[2], Decoding(max_new_tokens=4)))


@pytest.mark.parametrize("seed", range(3))
def test_parts_of_a_batch_write_the_same(
    subjects: dict[str, Subject], opened: Callable[..., Desk], monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Three parts that are computed at the same time, joined and left by requests of all kinds."""
    monkeypatch.setattr(decoding_loop, "_PART_ROWS", 2)
    subject = subjects["pointer"]
    asked = _mixed(subject, 5 + seed, 16)
    alone_desk = opened(subject)
    alone = [received(alone_desk.ask(prompt, decoding)) for prompt, decoding in asked]
    network: Any = Failing(subject.made(cache_bytes=2**20))
    desk = opened(subject, network, replace(ROOMY, parts=3))
    ears = [desk.ask(prompt, decoding) for prompt, decoding in asked]
    for ear, one in zip(ears, alone, strict=True):
        found = received(ear)
        assert found.ids == one.ids
        assert found.answer.log_probability == pytest.approx(one.answer.log_probability, abs=1e-3)
    own, *others = sorted(network.threads)
    assert (own, {one.rsplit("_", 1)[0] for one in others}) == ("engine-test", {"steps-test"})


def test_few_rows_are_one_part(subjects: dict[str, Subject], opened: Callable[..., Desk]) -> None:
    """Sixteen rows are worth a thread: the first part gets them, then the second, then the smallest."""
    network: Any = Failing(subjects["pointer"].network)
    desk = opened(subjects["pointer"], network, replace(ROOMY, parts=2))
    decoding = Decoding(max_new_tokens=8, num_beams=4)
    for count, rows, threads in ((4, 16, 1), (5, 16, 2), (9, 20, 2)):
        prompt = subjects["pointer"].prompts[0]
        with desk.loop._changed:  # they arrive at once
            ears = [desk.ask(prompt, decoding) for _ in range(count)]
        found = [received(ear).answer.cost.batch_rows for ear in ears]
        assert (max(found), len(network.threads)) == (rows, threads)


def test_a_step_that_fails_ends_its_part_and_no_other(
    subjects: dict[str, Subject], opened: Callable[..., Desk], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoding_loop, "_PART_ROWS", 2)
    subject = subjects["pointer"]
    network: Any = Failing(subject.network)
    desk = opened(subject, network, replace(ROOMY, parts=2))
    decoding = Decoding(max_new_tokens=8, num_beams=2)
    network.fail_steps.append(torch.OutOfMemoryError("CUDA out of memory"))
    with desk.loop._changed:
        ears = [desk.ask(subject.prompts[0], decoding) for _ in range(2)]
    outcomes = [ear.outcome() for ear in ears]
    assert sorted(isinstance(one, MeshError) for one in outcomes) == [False, True]
    statistics = desk.loop.statistics(0)
    assert (statistics.failed, statistics.finished, statistics.active_rows) == (1, 1, 0)


def test_an_answer_that_cannot_be_given_fails_alone(
    subjects: dict[str, Subject], opened: Callable[..., Desk], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its confidence has no number; the loop goes on."""
    desk = opened(subjects["t5"])
    with monkeypatch.context() as patch:
        patch.setattr(Ids, "confidence", lambda *_: 1 / 0)
        error = desk.ask(subjects["t5"].prompts[0], Decoding(max_new_tokens=4)).outcome()
    assert isinstance(error, MeshError)
    assert error.reason == "INTERNAL"
    received(desk.ask(subjects["t5"].prompts[0], Decoding(max_new_tokens=4)))


def test_a_prompt_that_cannot_be_read_fails_alone(
    subjects: dict[str, Subject], opened: Callable[..., Desk]
) -> None:
    subject = subjects["t5"]
    network: Any = Failing(subject.made())
    network.bad_row = subject.prompts[1].rows[0]
    desk = opened(subject, network)
    ears = [desk.ask(prompt, Decoding(max_new_tokens=4)) for prompt in subject.prompts[:4]]
    outcomes = [ear.outcome() for ear in ears]
    assert [isinstance(one, MeshError) for one in outcomes] == [False, True, False, False]


def test_an_unknown_error_is_reported_without_its_text(
    subjects: dict[str, Subject], opened: Callable[..., Desk]
) -> None:
    network: Any = Failing(subjects["t5"].network)
    desk = opened(subjects["t5"], network)
    network.fail_steps.append(RuntimeError("a secret"))
    error = desk.ask(subjects["t5"].prompts[0], Decoding(max_new_tokens=8)).outcome()
    assert isinstance(error, MeshError)
    assert error.reason == "INTERNAL"
    assert "secret" not in str(error)


def test_a_request_of_many_beams_is_not_overtaken_for_ever(
    subjects: dict[str, Subject], opened: Callable[..., Desk]
) -> None:
    """Eight rows; short requests keep coming while one of eight beams waits: it is next."""
    subject = subjects["t5"]
    desk = opened(subject, limits=replace(ROOMY, rows=8))
    order: list[str] = []
    first = desk.ask(subject.prompts[0], Decoding(max_new_tokens=30, temperature=5.0))
    big = Ear()
    big.on_end = lambda outcome, end=big.on_end: (order.append("big"), end(outcome))  # type: ignore[method-assign, misc]
    desk.loop.put(
        Task(
            GenerationRequest("q", decoding=Decoding(num_beams=8, max_new_tokens=4)),
            Cancellation(),
            big,
            prompt=subject.prompts[1],
            transcript=Ids(),
        )
    )
    small = []
    for at in range(20):
        ear = Ear()
        ear.on_end = lambda outcome, end=ear.on_end: (order.append("small"), end(outcome))  # type: ignore[method-assign, misc]
        desk.loop.put(
            Task(
                GenerationRequest("q", decoding=Decoding(max_new_tokens=4, seed=at)),
                Cancellation(),
                ear,
                prompt=subject.prompts[2],
                transcript=Ids(),
            )
        )
        small.append(ear)
    for ear in (first, big, *small):
        assert isinstance(ear.outcome(), Answer)
    assert order[0] == "big"


def test_rows_and_bytes_are_bounded(subjects: dict[str, Subject], opened: Callable[..., Desk]) -> None:
    subject = subjects["llama"]
    cost = subject.network.footprint.own
    longest = max(prompt.tokens for prompt in subject.prompts) + 20
    for limits in (replace(ROOMY, rows=3), replace(ROOMY, bytes=3 * longest * cost)):
        desk = opened(subject, limits=limits)
        ears = [desk.ask(prompt, Decoding(max_new_tokens=20)) for prompt in subject.prompts]
        assert max(received(ear).answer.cost.batch_rows for ear in ears) <= 4
        refused = desk.ask(subject.prompts[0], Decoding(num_beams=8, max_new_tokens=20)).outcome()
        assert isinstance(refused, MeshError)
        assert (refused.code, refused.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "OVER_CAPACITY")
        assert f"{limits.rows} rows and {limits.bytes} bytes fit" in refused.message
        assert refused.retry_after_s is None


def test_cost_is_reported(subjects: dict[str, Subject], opened: Callable[..., Desk]) -> None:
    desk = opened(subjects["t5"])
    cost = received(desk.ask(subjects["t5"].prompts[0], Decoding(num_beams=4, max_new_tokens=6))).answer.cost
    assert 0 <= cost.queue_s <= cost.first_token_s <= cost.total_s < math.inf
    assert cost.batch_rows == 4


def test_a_listener_that_fails_is_let_go(subjects: dict[str, Subject], opened: Callable[..., Desk]) -> None:
    desk = opened(subjects["t5"])

    def fail(_: str) -> None:
        raise RuntimeError("gone")

    ear = Ear(fail)
    request = GenerationRequest("q", decoding=Decoding(max_new_tokens=500, temperature=5.0))
    desk.loop.put(Task(request, Cancellation(), ear, prompt=subjects["t5"].prompts[0], transcript=Ids()))
    ear.outcome()
    received(desk.ask(subjects["t5"].prompts[0], Decoding(max_new_tokens=2)))
    assert len(ear.deltas) == 1


def test_closing_ends_who_waits(subjects: dict[str, Subject]) -> None:
    desk = Desk(subjects["t5"], limits=replace(ROOMY, rows=1))
    ears = [
        desk.ask(subjects["t5"].prompts[0], Decoding(max_new_tokens=4000, temperature=9.0)) for _ in range(3)
    ]
    desk.close()
    assert all(isinstance(ear.outcome(), Unavailable) for ear in ears)
    assert isinstance(desk.ask(subjects["t5"].prompts[0], Decoding()).outcome(), Unavailable)


def test_a_tenant_joins_beside_one_that_has_more_to_do(
    subjects: dict[str, Subject], opened: Callable[..., Desk]
) -> None:
    """Eight rows; twenty long answers of one tenant leave two rows, and the other's turn is next."""
    subject = subjects["t5"]
    desk = opened(subject, limits=replace(ROOMY, rows=8))
    order: list[str] = []

    def ask(tenant: str, tokens: int, seed: int) -> Ear:
        ear = Ear()
        ear.on_end = lambda outcome, end=ear.on_end: (order.append(tenant), end(outcome))  # type: ignore[method-assign, misc]
        decoding = Decoding(max_new_tokens=tokens, temperature=5.0, seed=seed)
        request = GenerationRequest("q", decoding=decoding, tenant=tenant)
        desk.loop.put(Task(request, Cancellation(), ear, prompt=subject.prompts[seed % 3], transcript=Ids()))
        return ear

    ears = [ask("greedy", 200, at) for at in range(20)]
    _let_run(desk, 2, ears)
    assert desk.loop.statistics(0).active_rows <= 6
    polite = ask("polite", 2, 0)
    received(polite)
    assert order.count("greedy") <= 6, "those that ran, at most"
    for ear in ears:
        ear.outcome()


class Timed:
    """A network on a clock of its own: a prompt's token and a step take a unit each.

    Attributes:
        unit: a second, or another time. Seconds.
        now: its time. Seconds.
        read: tokens that were read between one step and the next.
        stepped: the batch of each step.
        gate: no step begins until it is set.
        at_gate: whether a step has begun, or waits.
    """

    def __init__(self, inner: Any, unit: float = 1.0) -> None:
        self._inner = inner
        self.unit = unit
        self.now = 0.0
        self.read = [0]
        self.stepped: list[object] = []
        self.gate, self.at_gate = threading.Event(), threading.Event()
        self.gate.set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def advance(self, prefills: Sequence[Prefill], most_tokens: int) -> None:
        before = sum(one.computed for one in prefills)
        self._inner.advance(prefills, most_tokens)
        took = sum(one.computed for one in prefills) - before
        self.now += took * self.unit
        self.read[-1] += took

    def rows(self) -> Rows:
        return cast(Rows, _TimedRows(self, self._inner.rows()))


class _TimedRows:
    def __init__(self, network: Timed, inner: Rows) -> None:
        self._network, self._inner = network, inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def step(self, tokens: Sequence[int]) -> torch.Tensor:
        self._network.at_gate.set()
        assert self._network.gate.wait(600)
        self._network.now += self._network.unit
        self._network.read.append(0)
        self._network.stepped.append(self)
        return self._inner.step(tokens)


def _unlike(prompt: Prompt, number: int, tenant: str) -> Prompt:
    """A prompt of one row, whose tokens are those of ``prompt`` in an order that depends on the number."""
    first, *middle, last = prompt.rows[0]
    times, at = divmod(number, len(middle))
    row = (first, *(middle[at:] + middle[:at]) * (1 + times), last)
    return replace(prompt, rows=(row,), heads=prompt.heads[:1], tenant=tenant)


class _Telling(Ear):
    """An ear that tells when the answer ends, in the loop's thread."""

    def __init__(self, ended: Callable[[], None]) -> None:
        super().__init__()
        self._ended = ended

    def on_end(self, outcome: Answer | Exception) -> None:
        self._ended()
        super().on_end(outcome)


def _asker(subject: Subject, desk: Desk) -> Callable[..., Ear]:
    """Return a function of a tenant, the tokens of an answer and a seed; no two prompts are alike.

    It may be given what the loop is to call when the answer ends.
    """

    def ask(tenant: str, tokens: int, seed: int, ended: Callable[[], None] = lambda: None) -> Ear:
        ear = _Telling(ended)
        decoding = Decoding(max_new_tokens=tokens, temperature=5.0, seed=seed)
        request = GenerationRequest("q", decoding=decoding, tenant=tenant)
        prompt = _unlike(subject.prompts[0], seed, tenant)
        desk.loop.put(Task(request, Cancellation(), ear, prompt=prompt, transcript=Ids()))
        return ear

    return ask


def test_prompts_of_one_tenant_take_as_much_time_as_answers_of_another(
    subjects: dict[str, Subject], opened: Callable[..., Desk]
) -> None:
    subject = subjects["pointer"]
    network = Timed(subject.made())
    most = 64
    limits = replace(ROOMY, rows=32, chunk_tokens=most)
    desk = opened(subject, cast("Network[Any]", network), limits, clock=lambda: network.now)

    ask = _asker(subject, desk)
    ended: list[int] = []
    network.gate.clear()
    polite = ask("polite", 100, 0, lambda: ended.append(len(network.read)))
    assert network.at_gate.wait(600)
    begun = len(network.read)
    greedy = [ask("greedy", 1, at) for at in range(40)]
    network.gate.set()
    received(polite)
    read = network.read[begun : ended[0]]
    assert len(read) >= 99
    assert sum(read) <= len(read) + 2 * most
    for ear in greedy:
        ear.outcome()
    assert sum(network.read) > 4 * (len(read) + 2 * most), "there was much to read"


@pytest.mark.parametrize("apart", [False, True])
def test_a_tenant_that_asks_for_little_waits_for_a_piece_and_not_for_turns(
    subjects: dict[str, Subject], opened: Callable[..., Desk], apart: bool
) -> None:
    """A hundredth of a second each: 30 tokens and 30 steps are within the credit of a second."""
    subject = subjects["pointer"]
    network = Timed(subject.made(), 0.01)
    limits = replace(ROOMY, chunk_tokens=1, small=SmallPieces(1000, 1000) if apart else None)
    desk = opened(subject, cast("Network[Any]", network), limits, clock=lambda: network.now)

    ask = _asker(subject, desk)
    greedy = [ask("greedy", 2000, 0)]
    _let_run(desk, 150, greedy)
    greedy += [ask("greedy", 2000, at) for at in range(1, 30)]
    polite = ask("polite", 30, 0)
    received(polite)
    mine = [at for at, one in enumerate(network.stepped) if one is not network.stepped[0]]
    assert bool(mine) is apart
    if apart:
        assert len(mine) > 10
        assert mine[-1] - mine[0] <= len(mine), "at most one step of the other tenant's answers in between"
    desk.close()


def test_pieces_are_small_only_while_another_tenant_asks(
    subjects: dict[str, Subject], opened: Callable[..., Desk]
) -> None:
    """Alone, all prompts are read in one pass, and 20 rows go together; beside another, 8 tokens and 4 rows.

    The other has had less time, so it reads in one pass, too.
    """
    subject = subjects["pointer"]
    network = Timed(subject.made(), 0.01)
    passes: list[tuple[str, int]] = []
    advance = network.advance

    def noted(prefills: Sequence[Prefill], most_tokens: int) -> None:
        passes.append((prefills[0].prompt.tenant, most_tokens))
        advance(prefills, most_tokens)

    network.advance = noted  # type: ignore[method-assign]
    limits = replace(ROOMY, rows=32, pass_tokens=900, chunk_tokens=100, small=SmallPieces(8, 4))
    desk = opened(subject, cast("Network[Any]", network), limits, clock=lambda: network.now)

    ask = _asker(subject, desk)
    alone = [received(one).answer for one in [ask("greedy", 16, at) for at in range(20)]]
    assert {most for _, most in passes} <= {900, 100}
    assert max(one.cost.batch_rows for one in alone) > 4
    received(ask("polite", 1, 0))
    assert {most for tenant, most in passes if tenant == "polite"} <= {900, 100}
    assert any(tenant == "polite" for tenant, _ in passes)
    passes.clear()
    beside = [received(one).answer for one in [ask("greedy", 16, at + 20) for at in range(20)]]
    assert {most for _, most in passes} == {8}
    assert max(one.cost.batch_rows for one in beside) == 4
    network.now += 61.0
    passes.clear()
    again = [received(one).answer for one in [ask("greedy", 16, at + 40) for at in range(20)]]
    assert {most for _, most in passes} <= {900, 100}
    assert max(one.cost.batch_rows for one in again) > 4


def test_a_tenants_prompt_is_read_in_its_turn(
    subjects: dict[str, Subject], opened: Callable[..., Desk]
) -> None:
    subject = subjects["pointer"]
    network = Timed(subject.made())
    order: list[str] = []
    limits = replace(ROOMY, rows=32, pass_tokens=1, chunk_tokens=1)
    begun, gate, opened_gate = threading.Semaphore(0), threading.Semaphore(0), threading.Event()
    advance = network.advance

    def held(prefills: Sequence[Prefill], most_tokens: int) -> None:
        begun.release()
        if not opened_gate.is_set():
            gate.acquire(timeout=60)
        advance(prefills, most_tokens)

    network.advance = held  # type: ignore[method-assign]
    desk = opened(subject, cast("Network[Any]", network), limits, clock=lambda: network.now)

    def ask(tenant: str, seed: int) -> Ear:
        ear = Ear()
        ear.on_end = lambda outcome, end=ear.on_end: (order.append(tenant), end(outcome))  # type: ignore[method-assign, misc]
        request = GenerationRequest("q", decoding=Decoding(max_new_tokens=1), tenant=tenant)
        prompt = _unlike(subject.prompts[0], seed, tenant)
        desk.loop.put(Task(request, Cancellation(), ear, prompt=prompt, transcript=Ids()))
        return ear

    ears = [ask("greedy", at) for at in range(12)]
    begun.acquire(timeout=60)
    gate.release()
    begun.acquire(timeout=60)  # all of them have been let in
    ears.append(ask("polite", 0))
    opened_gate.set()
    gate.release()
    for ear in ears:
        ear.outcome()
    assert order.index("polite") <= 3


@pytest.mark.parametrize("kind", KINDS)
def test_reuse_tells_nothing_of_another_tenant(
    subjects: dict[str, Subject], opened: Callable[..., Desk], kind: str
) -> None:
    """A guess of what another tenant has asked is computed anew, waiting beside it or after it."""
    subject = subjects[kind]
    desk = opened(subject, subject.made(cache_bytes=2**24))
    prompt = max(subject.prompts, key=lambda one: one.tokens)

    def ask(tenant: str) -> Ear:
        ear = Ear()
        request = GenerationRequest("q", decoding=Decoding(max_new_tokens=2), tenant=tenant)
        asked = replace(prompt, tenant=tenant)
        desk.loop.put(Task(request, Cancellation(), ear, prompt=asked, transcript=Ids()))
        return ear

    def reused(ear: Ear) -> int:
        return received(ear).answer.cost.reused_tokens

    assert [reused(ear) for ear in [ask("victim"), ask("spy")]] == [reused(ask("third"))] * 2
    own = reused(ask("victim"))
    assert own > reused(ask("fourth")), "its own is found again"
