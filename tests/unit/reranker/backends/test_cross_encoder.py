"""The cross-encoder: sentence-transformers' own scores, whoever shares the batch."""

from __future__ import annotations

import asyncio
import json
import random
import shutil
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import CrossEncoder
from transformers import BertConfig, BertForSequenceClassification, PreTrainedModel

from evenmesh.wire.errors import MeshError
from evenmesh_kit.compute.executors import ComputePool
from evenmesh_kit.compute.model_files import ModelError
from evenmesh_kit.compute.placement import Placement
from evenmesh_reranker.backends.cross_encoder import CrossEncoderReranker
from evenmesh_reranker.backends.encoder import load
from evenmesh_reranker.domain import Agent, Fusion, Passage, Scores
from evenmesh_reranker.models.fusions import Fusions
from evenmesh_reranker.ports import Assigned, Row
from tests.support import tiny_encoders, tiny_models
from tests.support.tiny_encoders import OneForAll
from tests.support.tiny_models import SENTENCES
from tests.support.waiting import until

QUERY = SENTENCES[0]
CPU = Placement(torch.device("cpu"), torch.float32)
Make = Callable[..., CrossEncoderReranker]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.cross_encoder(tmp_path_factory.mktemp("cross-encoder"))


@pytest.fixture
async def make(folder: Path) -> AsyncIterator[Make]:
    """Makes rerankers."""
    pool = ComputePool(2, "test")
    made: list[CrossEncoderReranker] = []

    def make(
        *,
        cross_encoder: Path = folder,
        dtype: str = "float32",
        max_length: int | None = None,
        batch_tokens: int = 4096,
        batch_delay_ms: float = 2,
        max_tokens: int | None = None,
    ) -> CrossEncoderReranker:
        model = tiny_encoders.encoder(cross_encoder, version="v1", dtype=dtype, max_length=max_length)
        made.append(
            CrossEncoderReranker(
                OneForAll(model),
                pool=pool,
                batch_size=16,
                batch_tokens=batch_tokens,
                max_delay_s=batch_delay_ms / 1000,
                max_tokens=max_tokens,
                setting="EVENMESH_X",
            )
        )
        return made[-1]

    yield make
    for one in made:
        await one.close()
    pool.close()


def _passages(count: int, seed: int = 0) -> list[Passage]:
    rng = random.Random(seed)
    words = " ".join(SENTENCES).split()
    return [
        Passage(str(at), "Title" if at % 2 else "", " ".join(rng.choices(words, k=rng.randint(1, 60))))
        for at in range(count)
    ]


def _network(reranker: CrossEncoderReranker) -> Any:
    models = reranker._models
    assert isinstance(models, OneForAll)
    return models.model.encoder


async def _score(reranker: CrossEncoderReranker, passages: list[Passage], query: str = QUERY) -> list[float]:
    return list((await reranker.score(query, passages, Agent())).values)


async def test_an_agents_own_fusion_goes_with_its_scores(make: Make, folder: Path, tmp_path: Path) -> None:
    fused = tmp_path / "fused"
    shutil.copytree(folder, fused)
    config = json.loads((fused / "config.json").read_text())
    own = {"task_id": "qa", "model_id": "t5", "weight": 0.5, "neighbors": 0.25}
    config["evenmesh_fusion"] = {"weight": 2.0, "agents": [own]}
    (fused / "config.json").write_text(json.dumps(config))
    reranker, passages = make(cross_encoder=fused), _passages(2)
    assert (await reranker.score(QUERY, passages, Agent("qa", "t5"))).fusion == Fusion(0.5, 0.25)
    assert (await reranker.score(QUERY, passages, Agent("qa", "bart"))).fusion == Fusion(2.0)
    assert (await reranker.score(QUERY, passages, Agent())).fusion == Fusion(2.0)


@pytest.fixture
def reads_asking(folder: Path, tmp_path: Path) -> Path:
    """A copy of the model that also reads what asks alone."""
    target = tmp_path / "reads-asking"
    shutil.copytree(folder, target)
    config = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps(config | {"evenmesh_reads_asking": True}))
    return target


async def test_what_asks_is_also_read_alone(make: Make, reads_asking: Path) -> None:
    """By scores of the model that reads a query once: the mean of both log-odds."""
    passages = _passages(40)
    plain, both = make(), make(cross_encoder=reads_asking)
    asks, story = "What jumps over the dog?", "The fox sleeps. What jumps over the dog?"
    stands, alone = [np.array(await _score(plain, passages, query)) for query in (story, asks)]
    assert np.abs(stands - alone).max() > 1e-3, "the comparison would be vacuous"
    odds = (np.log(stands / (1 - stands)) + np.log(alone / (1 - alone))) / 2
    found = await _score(both, passages, story)
    assert found == pytest.approx(1 / (1 + np.exp(-odds)), abs=1e-6)
    assert await _score(both, passages, asks) == await _score(plain, passages, asks)
    exact = tiny_encoders.encoder(reads_asking, version="v1")
    assert found == pytest.approx(exact.scores(story, passages, Agent()), abs=1e-6)


def test_a_model_that_does_not_say_whether_it_reads_what_asks_is_refused(reads_asking: Path) -> None:
    config = json.loads((reads_asking / "config.json").read_text())
    (reads_asking / "config.json").write_text(json.dumps(config | {"evenmesh_reads_asking": "yes"}))
    with pytest.raises(
        ModelError, match=r"evenmesh_reads_asking of config.json must be true or false, not 'yes'"
    ):
        load(reads_asking, CPU)


async def test_a_query_is_read_once_where_both_readings_have_too_many_tokens(
    make: Make, reads_asking: Path
) -> None:
    """Of 64 tokens each, 40 pairs may be computed: those of 20 passages twice, of 40 once, and not 41."""
    limit = {"max_length": 64, "max_tokens": 64 * 40}
    plain, both = make(**limit), make(cross_encoder=reads_asking, **limit)
    long = [Passage(str(at), "", f"{' '.join(SENTENCES)} " * 30) for at in range(41)]
    story = "The fox sleeps. What jumps over the dog?"
    once = await _score(plain, long[:40], story)
    assert await _score(both, long[:40], story) == once
    assert await _score(both, long[:20], story) != once[:20]
    with pytest.raises(MeshError, match="the first 40 of 41 passages"):
        await _score(both, long, story)


async def test_scores_are_those_of_sentence_transformers(make: Make, folder: Path) -> None:
    passages = _passages(60)
    got = await _score(make(), passages)
    reference = CrossEncoder(str(folder), device="cpu")
    pairs = [(QUERY, f"{one.title} {one.text}" if one.title else one.text) for one in passages]
    expected = [float(reference.predict([pair], activation_fn=torch.nn.Sigmoid())[0]) for pair in pairs]
    assert got == pytest.approx(expected, abs=1e-5)
    assert max(got) - min(got) > 0.1, "the comparison would be vacuous"
    assert all(0.0 <= score <= 1.0 for score in got)


async def test_scores_do_not_depend_on_company_or_order(make: Make) -> None:
    reranker = make()
    passages = _passages(50)
    together = await _score(reranker, passages)
    assert (await _score(reranker, passages[::-1]))[::-1] == pytest.approx(together, abs=1e-5)
    for at in (0, 21, 49):
        assert await _score(reranker, [passages[at]]) == pytest.approx([together[at]], abs=1e-5)
    others = [_score(reranker, _passages(7, seed), SENTENCES[seed]) for seed in range(1, 6)]
    crowded, *_ = await asyncio.gather(_score(reranker, passages), *others)
    assert crowded == pytest.approx(together, abs=1e-5)


async def test_concurrent_requests_share_batches(make: Make) -> None:
    reranker = make(batch_delay_ms=200)
    batches: list[int] = []
    hook = _network(reranker).register_forward_pre_hook(
        lambda _, args: batches.append(len(args[0]["input_ids"]))
    )
    try:
        await asyncio.gather(*(_score(reranker, _passages(4, seed)) for seed in range(8)))
    finally:
        hook.remove()
    assert sum(batches) == 32
    assert len(batches) <= 4, "eight requests alone would be eight batches"


async def test_a_small_request_gets_between_the_chunks_of_a_large_one(make: Make) -> None:
    reranker = make(batch_tokens=512, batch_delay_ms=0)
    loop = asyncio.get_running_loop()
    began = asyncio.Event()
    done: list[str] = []

    async def run(name: str, count: int) -> None:
        await _score(reranker, _passages(count))
        done.append(name)

    def tell(*_: Any) -> None:
        loop.call_soon_threadsafe(began.set)

    hook = _network(reranker).register_forward_pre_hook(tell)
    large = asyncio.ensure_future(run("large", 1000))
    await asyncio.wait_for(began.wait(), 60)
    hook.remove()
    await asyncio.gather(run("small", 2), large)
    assert done == ["small", "large"]


async def test_little_is_padded(make: Make) -> None:
    reranker = make()
    computed = useful = 0

    def count(_: Any, args: Any) -> None:
        nonlocal computed, useful
        computed += args[0]["attention_mask"].numel()
        useful += int(args[0]["attention_mask"].sum())

    hook = _network(reranker).register_forward_pre_hook(count)
    await _score(reranker, _passages(200))
    hook.remove()
    assert computed / useful < 1.25


async def test_what_is_too_long_is_cut_at_its_end(make: Make) -> None:
    reranker = make(max_length=32)
    text = " ".join(SENTENCES)
    first, second, third = await _score(
        reranker, [Passage("a", "", text), Passage("b", "", text + " and more"), Passage("c", "", text[:20])]
    )
    assert first == pytest.approx(second, abs=1e-6)
    assert first != pytest.approx(third, abs=1e-3)


async def test_bfloat16_keeps_scores_close(make: Make) -> None:
    passages = _passages(40)
    exact = await _score(make(), passages)
    fast = await _score(make(dtype="bfloat16"), passages)
    assert fast == pytest.approx(exact, abs=0.1)
    assert fast != exact


async def test_callers_who_left_are_not_computed_for(make: Make) -> None:
    reranker = make(batch_delay_ms=500)
    batches: list[int] = []
    hook = _network(reranker).register_forward_pre_hook(
        lambda _, args: batches.append(len(args[0]["input_ids"]))
    )
    leaving = asyncio.ensure_future(_score(reranker, _passages(5, 1)))
    while not reranker._batcher._queue:
        await asyncio.sleep(0.001)
    leaving.cancel()
    await _score(reranker, _passages(3, 2))
    hook.remove()
    assert sum(batches) == 3


async def test_a_caller_who_leaves_stops_the_model_after_one_batch(make: Make) -> None:
    """Sixty-four pairs, of which a batch has few: the one that runs when the caller leaves is the last."""
    reranker = make(batch_tokens=128, batch_delay_ms=0)
    began, go = threading.Event(), threading.Event()
    batches: list[int] = []

    def hold(_: Any, args: Any) -> None:
        batches.append(len(args[0]["input_ids"]))
        began.set()
        assert go.wait(60)

    hook = _network(reranker).register_forward_pre_hook(hold)
    leaving = asyncio.ensure_future(_score(reranker, _passages(64, 1)))
    assert await asyncio.to_thread(began.wait, 60)
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    go.set()
    await _score(reranker, [Passage("a", "", "short")])
    hook.remove()
    assert len(batches) == 2, "one of the caller who left, one of the next"


async def test_agents_it_does_not_know_are_unknown_ones(make: Make) -> None:
    reranker = make()
    passages = _passages(5)
    some = await reranker.score(QUERY, passages, Agent("qa-open", "t5-small-fid"))
    assert some == await reranker.score(QUERY, passages, Agent())


def _relabelled(folder: Path, target: Path, labels: int) -> Path:
    shutil.copytree(folder, target)
    config = BertConfig.from_pretrained(folder, num_labels=labels)
    torch.manual_seed(0)
    BertForSequenceClassification(config).save_pretrained(target)
    return target


async def test_two_classes_score_by_the_second(make: Make, folder: Path, tmp_path: Path) -> None:
    target = _relabelled(folder, tmp_path / "two", 2)
    passages = _passages(5)
    got = await _score(make(cross_encoder=target), passages)
    reference = CrossEncoder(str(target), device="cpu")
    pairs = [(QUERY, f"{one.title} {one.text}" if one.title else one.text) for one in passages]
    expected = reference.predict(pairs, apply_softmax=True)[:, 1]
    assert got == pytest.approx([float(value) for value in expected], abs=1e-5)


def test_three_classes_are_no_reranker(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="has 3 labels; a reranker has one or two"):
        load(_relabelled(folder, tmp_path / "three", 3), CPU)


def test_no_weights_but_safetensors(folder: Path, tmp_path: Path) -> None:
    target = Path(shutil.copytree(folder, tmp_path / "copy"))
    (target / "model.safetensors").rename(target / "pytorch_model.bin")
    with pytest.raises(ModelError, match="other formats are not loaded"):
        load(target, CPU)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_damaged_files(folder: Path, tmp_path: Path, name: str) -> None:
    target = Path(shutil.copytree(folder, tmp_path / "copy"))
    (target / name).write_text("{")
    with pytest.raises(ModelError, match="cannot be loaded") as caught:
        load(target, CPU)
    assert "\n" not in str(caught.value)


async def test_pairs_of_too_many_tokens_are_refused_before_any_is_scored(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    reranker = make(max_length=64, max_tokens=64 * 40)
    model = reranker._models.model  # type: ignore[attr-defined]
    tokenized = 0
    rows = model.rows

    def counted(query: str, texts: list[str], agent: Agent) -> list[Row]:
        nonlocal tokenized
        tokenized += len(texts)
        return rows(query, texts, agent)

    monkeypatch.setattr(model, "rows", counted)
    monkeypatch.setattr(model, "probabilities", lambda *_: pytest.fail("a pair was scored"))
    long = [Passage(str(at), "", "fox " * 1000) for at in range(1000)]
    with pytest.raises(MeshError, match="the first 40 of 1000 passages") as refused:
        await reranker.score(QUERY, long, Agent())
    assert (refused.value.reason, refused.value.field) == ("REQUEST_TOO_LARGE", "passages")
    assert "EVENMESH_X" in refused.value.message
    assert tokenized == 64  # two parts of 32, and not all thousand


async def test_what_is_far_behind_the_end_of_a_pair_is_not_tokenized(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    reranker = make(max_length=64)
    encoder = _network(reranker)
    given: list[str] = []
    tokenizer = encoder.tokenizer

    class Watched:
        def __getattr__(self, name: str) -> Any:
            return getattr(tokenizer, name)

        def __call__(self, queries: list[str], texts: list[str], **options: Any) -> Any:
            given.extend(texts)
            return tokenizer(queries, texts, **options)

    monkeypatch.setattr(type(encoder), "tokenizer", Watched(), raising=False)
    short, long = (Passage("a", "", "lamp " * count) for count in (400, 13_000))
    assert await _score(reranker, [short]) == await _score(reranker, [long])
    assert {len(text) for text in given} == {400 * 5, 64 * 32}


def test_models_loaded_at_once_leave_transformers_as_it_was(folder: Path) -> None:
    tie_weights = PreTrainedModel.tie_weights
    with ThreadPoolExecutor(4) as threads:
        for _ in threads.map(lambda _: load(folder, CPU), range(24)):
            pass
    assert PreTrainedModel.tie_weights is tie_weights
    assert torch.get_default_dtype() is torch.float32


class _Somewhere:
    """A model on a device, which notes the rows of its batches."""

    version = "somewhere"
    fusions = Fusions()
    reads_asking = False
    parallel = 1

    def __init__(self, device: str) -> None:
        self.device = device
        self.scored: list[int] = []

    def rows(self, query: str, texts: Sequence[str], agent: Agent) -> list[Row]:
        return [Row((1,) * 50, None) for _ in texts]

    def batches(self, lengths: Sequence[int]) -> None:
        """However they are split."""

    def probabilities(self, rows: Sequence[Row], adapters: Sequence[object]) -> list[float]:
        self.scored.append(len(rows))
        return [0.5] * len(rows)


@pytest.mark.parametrize(
    ("device", "size", "batches"),
    [("cpu", None, [16, 16, 8]), ("cuda:0", None, [40]), ("cuda:0", 30, [30, 10]), ("cpu", 40, [40])],
)
async def test_rows_of_a_batch_follow_the_device(device: str, size: int | None, batches: list[int]) -> None:
    """Forty pairs of 50 tokens: on a GPU the 4,096 tokens of a batch are its only bound."""
    model: Any = _Somewhere(device)
    pool = ComputePool(2, "test")
    reranker = CrossEncoderReranker(
        OneForAll(model), pool=pool, batch_size=size, batch_tokens=4096, max_delay_s=0.0
    )
    await _score(reranker, _passages(40))
    await reranker.close()
    pool.close()
    assert model.scored == batches


class _Failing(_Somewhere):
    """Cannot compute a batch that holds a pair of a length; one of length 9 is computed once it is let."""

    def __init__(self, *lengths: int) -> None:
        super().__init__("cpu")
        self._fails = lengths
        self.began = threading.Event()
        self.let = threading.Event()

    def rows(self, query: str, texts: Sequence[str], agent: Agent) -> list[Row]:
        return [Row((1,) * len(query), None) for _ in texts]

    def probabilities(self, rows: Sequence[Row], adapters: Sequence[object]) -> list[float]:
        if any(len(row.ids) in self._fails for row in rows):
            raise IndexError("index out of range in self")
        if len(rows[0].ids) == 9:
            self.began.set()
            self.let.wait()
        return super().probabilities(rows, adapters)


class _ByTask:
    """A model for each task."""

    def __init__(self, models: dict[str, Any]) -> None:
        self._models = models

    async def model_for(self, agent: Agent) -> Assigned:
        return Assigned(self._models[agent.task_id])


async def test_a_request_that_fails_in_a_batch_fails_alone() -> None:
    pool = ComputePool(2, "test")
    models = {"one": _Failing(3), "other": _Failing(2)}
    reranker = CrossEncoderReranker(
        _ByTask(models), pool=pool, batch_size=16, batch_tokens=4096, max_delay_s=0.0
    )

    def score(query: str, task: str) -> asyncio.Task[Scores]:
        return asyncio.create_task(reranker.score(query, _passages(1), Agent(task)))

    first = score("q" * 9, "one")
    await until(models["one"].began.is_set)
    tasks = [score("q", "one"), score("qqq", "one"), score("qq", "other"), score("qqqq", "one")]
    await until(lambda: len(reranker._batcher.waiting) == len(tasks))
    models["one"].let.set()
    found = await asyncio.gather(first, *tasks, return_exceptions=True)
    await reranker.close()
    pool.close()
    assert [isinstance(one, IndexError) for one in found] == [False, False, True, True, False]
