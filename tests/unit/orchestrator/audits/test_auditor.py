"""The flow of an audit over fakes: the same numbers as a loop without a mesh, and what goes wrong in it."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import TypeVar

import numpy as np
import pytest

from evenmesh.generator.v1.generator_service_pb2 import GenerateRequest
from evenmesh.orchestrator.v1 import orchestrator_service_pb2 as pb
from evenmesh.wire.deadline import Deadline
from evenmesh.wire.errors import FailedPrecondition, InvalidField, MeshError, Overloaded, Unavailable
from evenmesh_core.confidence_sequences import empirical_bernstein_sequence
from evenmesh_core.exposure import exposure_metrics
from evenmesh_core.oracle import oracle_rankings
from evenmesh_core.plackett_luce import inclusion_probabilities, log_probability, log_weights, sample_rankings
from evenmesh_core.text_metrics import token_f1
from evenmesh_orchestrator.asks import contexts as asked_contexts
from evenmesh_orchestrator.domain import Action, Audit, AuditEvent, Degraded, Finished, Ranked, Stage
from evenmesh_orchestrator.expressions.sources import COLLECTION_DEPTH
from tests.unit.orchestrator.fakes import Mesh, ask, ask_expression, audit, passage

E = TypeVar("E")

AWAY = Unavailable("UPSTREAM_UNAVAILABLE", "away")
NAMES = "abcdef"
SCORES = np.arange(6, 0, -1, dtype=float)
USEFUL = [name in "ce" for name in NAMES]


def _all(events: Sequence[AuditEvent], kind: type[E]) -> list[E]:
    return [event for event in events if isinstance(event, kind)]


def _drawn(alpha: float, count: int, k: int = 2) -> list[str]:
    """The rankings of a loop without a mesh, as words."""
    rng = np.random.default_rng([0, zlib.crc32(b"Which river?")])
    rows = sample_rankings(log_weights(SCORES, alpha), num_rankings=count, k=k, rng=rng)
    return ["".join(NAMES[item] for item in row) for row in rows]


def _oracle(count: int) -> list[str]:
    rng = np.random.default_rng([0, zlib.crc32(b"oracle Which river?")])
    rows = oracle_rankings(USEFUL, num_rankings=count, k=2, rng=rng)
    return ["".join(NAMES[item] for item in row) for row in rows]


def _utility(context: str) -> float:
    return token_f1(" ".join(context), ["a b"])


async def test_an_audit_is_a_loop_over_the_same_samples(mesh: Mesh) -> None:
    count = 20
    events = await mesh.audit(audit(alphas=[1, 4], rankings=count))

    contexts = {
        (pb.AUDIT_POLICY_DETERMINISTIC, None): ["ab"],
        (pb.AUDIT_POLICY_SAMPLED, 1.0): _drawn(1, count),
        (pb.AUDIT_POLICY_SAMPLED, 4.0): _drawn(4, count),
        (pb.AUDIT_POLICY_ORACLE, None): _oracle(count),
    }
    expected = [
        (policy, alpha, sample, tuple(context), " ".join(context), _utility(context))
        for (policy, alpha), level in contexts.items()
        for sample, context in enumerate(level)
    ]
    samples = _all(events, pb.AuditSample)
    assert [
        (
            one.policy,
            one.alpha or None,
            one.sample,
            tuple(one.passage_ids),
            one.answer,
            one.utility,
        )
        for one in samples
    ] == expected
    for alpha in (1.0, 4.0):
        rows = [
            [NAMES.index(name) for name in context] for context in contexts[pb.AUDIT_POLICY_SAMPLED, alpha]
        ]
        logs = [one.log_probability for one in samples if one.alpha == alpha]
        assert logs == pytest.approx(log_probability(log_weights(SCORES, alpha), np.array(rows)).tolist())

    u_max = max(_utility(context) for level in contexts.values() for context in level)
    reports = _all(events, pb.ExposureReport)
    assert [(one.audit.policy, one.audit.alpha or None) for one in reports] == list(contexts)
    for one, level in zip(reports, contexts.values(), strict=True):
        rows = [[NAMES.index(name) for name in context] for context in level]
        metrics = exposure_metrics(rows, USEFUL, k=2)
        assert one.exposure == metrics.exposure.tolist()
        assert (one.ee_d, one.ee_r) == (metrics.ee_d, metrics.ee_r)
        assert (one.ee_d_norm, one.ee_r_norm) == (metrics.ee_d_norm, metrics.ee_r_norm)
        mean = sum(map(_utility, level)) / len(level)
        assert one.expected_utility == pytest.approx(mean)
        assert one.audit.u_max == u_max
        assert one.audit.normalized_expected_utility == pytest.approx(mean / u_max)
        assert (one.audit.num_rankings, one.audit.num_answered, one.audit.stopped_early) == (
            len(level),
            len(level),
            False,
        )


async def test_what_is_searched_for_is_ranked_for_and_the_prompt_is_as_requested(mesh: Mesh) -> None:
    await mesh.audit(audit(alphas=[1], rankings=2, reranker="rankrag", search="oil", template="lamp-4"))
    assert [call["question"] for call in mesh.reranker.calls] == ["oil"]
    prompts = [prompt for batch in mesh.generator.batches for prompt in batch]
    assert {(prompt.question, prompt.template) for prompt in prompts} == {("Which river?", "lamp-4")}


async def test_events_come_in_order(mesh: Mesh) -> None:
    events = await mesh.audit(audit(rankings=3, num_oracle=2))
    kinds = [type(event).__name__ for event in events]
    assert kinds == ["AuditSettled", *["AuditSample"] * (1 + 3 + 3 + 2), *["ExposureReport"] * 4, "Finished"]
    (settled,) = _all(events, pb.AuditSettled)
    assert list(settled.passage_ids) == list(NAMES)
    assert _all(events, Finished)[0].run_id == "run"


async def test_every_context_is_answered_once_and_few_at_a_time(mesh: Mesh) -> None:
    mesh.generator.batch_delay_s = 0.001
    events = await mesh.audit(audit(alphas=[0, 1, 2], rankings=50))

    contexts = {tuple(one.passage_ids) for one in _all(events, pb.AuditSample)}
    asked = [tuple(one.id for one in prompt.passages) for batch in mesh.generator.batches for prompt in batch]
    assert len(asked) == len(set(asked)) == len(contexts) == _all(events, pb.AuditSettled)[0].num_contexts
    assert set(asked) == contexts
    assert mesh.generator.most_batches_at_once == mesh.config.batches_in_flight
    assert max(map(len, mesh.generator.batches)) <= mesh.config.batch_size
    assert len(mesh.retriever.calls) == 1


async def test_contexts_of_long_passages_are_asked_for_in_smaller_batches(
    mesh: Mesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asked_contexts, "BATCH_BYTES", 10_000)
    mesh.config = replace(mesh.config, batch_size=16)
    mesh.retriever.passages = [passage(name, "x" * 1_600) for name in NAMES]
    await mesh.audit(audit(alphas=[0], rankings=50))
    assert max(map(len, mesh.generator.batches)) == 3  # of two passages each


async def test_exact_exposure_is_that_of_infinitely_many_samples(mesh: Mesh) -> None:
    events = await mesh.audit(audit(alphas=[2], rankings=1000, num_answers=0))
    (_, report) = _all(events, pb.ExposureReport)
    inclusion = inclusion_probabilities(log_weights(SCORES, 2), k=2)
    assert list(report.audit.exact_exposure) == pytest.approx(inclusion)
    exact = exposure_metrics(None, USEFUL, k=2, exposure=inclusion)
    assert report.audit.exact_ee_d_norm == pytest.approx(exact.ee_d_norm)
    assert report.audit.exact_ee_r_norm == pytest.approx(exact.ee_r_norm)
    # A passage's exposure is a share of 1,000 draws: within 5 standard deviations, √(1/4 / 1000) at most.
    assert report.ee_r_norm == pytest.approx(exact.ee_r_norm, abs=5 * (1 / 4 / 1000) ** 0.5)


async def test_without_answers_nothing_is_generated(mesh: Mesh) -> None:
    events = await mesh.audit(audit(rankings=5, num_answers=0))
    samples, reports = _all(events, pb.AuditSample), _all(events, pb.ExposureReport)
    assert len(samples) == 1 + 5 + 5
    assert not any(one.answered or one.HasField("error") or one.HasField("utility") for one in samples)
    assert [one.audit.num_answered for one in reports] == [0] * 3
    assert not any(one.audit.HasField("u_max") or one.HasField("expected_utility") for one in reports)
    assert mesh.generator.batches == []


async def test_sampling_stops_where_the_interval_is_narrow_enough(mesh: Mesh) -> None:
    mesh.generator.says = lambda _: "a b"
    everything = _all(await mesh.audit(audit(alphas=[1, 2], rankings=200)), pb.AuditSample)
    events = await mesh.audit(audit(alphas=[1, 2], rankings=200, until_width=0.25, level=0.9, num_oracle=3))

    needed = empirical_bernstein_sequence(np.ones(200), level=0.9).first_within(0.25)
    assert needed is not None
    samples = _all(events, pb.AuditSample)
    for alpha in (1.0, 2.0):
        mine = [one for one in samples if one.alpha == alpha]
        assert len(mine) == needed < 200
        whole = [one for one in everything if one.alpha == alpha]
        assert [one.passage_ids for one in mine] == [one.passage_ids for one in whole[:needed]]
    for one in _all(events, pb.ExposureReport)[1:3]:
        assert (one.audit.num_rankings, one.audit.num_answered, one.audit.stopped_early) == (
            needed,
            needed,
            True,
        )
        low, high = one.audit.expected_utility_low, one.audit.expected_utility_high
        assert high - low <= 0.25
        assert low <= 1.0 <= high


async def test_what_is_not_needed_any_more_is_not_generated(mesh: Mesh) -> None:
    mesh.generator.says = lambda _: "a b"
    await mesh.audit(audit(alphas=[0], rankings=400, until_width=0.9, num_oracle=0, depth=6))
    asked = sum(map(len, mesh.generator.batches))
    needed = empirical_bernstein_sequence(np.ones(400)).first_within(0.9)
    assert needed is not None
    # What is asked for ahead is bounded by the batches in flight.
    assert asked <= 1 + needed + mesh.config.batch_size * mesh.config.batches_in_flight < 6 * 5


async def test_a_context_that_fails_leaves_its_samples_without_answer(mesh: Mesh) -> None:
    bad = InvalidField("passages", "too long")
    mesh.generator.fails = lambda prompt: bad if prompt.passages[0].id == "b" else None
    events = await mesh.audit(audit(rankings=30))

    (degraded,) = _all(events, Degraded)
    assert (degraded.stage, degraded.action, degraded.reason) == (
        Stage.GENERATE,
        Action.NO_ANSWER,
        "UPSTREAM_REFUSED",
    )
    for one in _all(events, pb.AuditSample):
        failed = one.passage_ids[0] == "b"
        assert (not one.answered, one.HasField("error"), not one.HasField("utility")) == (
            failed,
            failed,
            failed,
        )
    for one in _all(events, pb.ExposureReport)[1:3]:
        mine = [sample for sample in _all(events, pb.AuditSample) if sample.alpha == one.audit.alpha]
        values = [sample.utility for sample in mine if sample.HasField("utility")]
        assert one.audit.num_answered == len(values) < 30
        assert one.expected_utility == pytest.approx(sum(values) / len(values))


async def test_a_generator_that_is_away_fails_the_audit(mesh: Mesh) -> None:
    mesh.generator.batch_error = AWAY
    with pytest.raises(Unavailable):
        await mesh.audit(audit())


async def test_a_generator_that_refuses_fails_the_audit(mesh: Mesh) -> None:
    mesh.generator.batch_error = FailedPrecondition("NO_SUCH_MODE", "cannot")
    with pytest.raises(FailedPrecondition):
        await mesh.audit(audit())


async def test_a_generator_that_goes_away_in_the_middle_is_named(mesh: Mesh) -> None:
    batch = mesh.generator.batch

    async def once(prompts: Sequence[GenerateRequest], *, timeout_s: float) -> object:
        if len(mesh.generator.batches) >= 3:
            mesh.generator.batch_error = AWAY
        return await batch(prompts, timeout_s=timeout_s)

    mesh.generator.batch = once  # type: ignore[method-assign,assignment]
    events = await mesh.audit(audit(alphas=[0], rankings=60))
    (degraded,) = _all(events, Degraded)
    assert (degraded.action, degraded.reason) == (Action.NO_ANSWER, "UPSTREAM_UNAVAILABLE")
    samples = _all(events, pb.AuditSample)
    assert any(one.answered for one in samples)
    assert any(one.error.reason == AWAY.reason for one in samples)


async def test_a_generator_with_too_much_to_do_is_waited_for(mesh: Mesh) -> None:
    batch, refused = mesh.generator.batch, 0

    async def busy(prompts: Sequence[GenerateRequest], *, timeout_s: float) -> object:
        nonlocal refused
        if refused < 3:
            refused += 1
            raise Overloaded("full", 0.001)
        return await batch(prompts, timeout_s=timeout_s)

    mesh.generator.batch = busy  # type: ignore[method-assign,assignment]
    events = await mesh.audit(audit(rankings=5))
    assert refused == 3
    assert _all(events, Degraded) == []
    assert all(one.answered for one in _all(events, pb.AuditSample))


async def test_rankings_over_a_reranker_are_those_of_an_ask(mesh: Mesh) -> None:
    mesh.reranker.scores = {name: place / 6 for place, name in enumerate(NAMES)}
    wanted = {"k": 3, "rerank_depth": 5}
    events = await mesh.audit(_reranked(**wanted))
    asked = await mesh.run(
        ask(reranker="rankrag", sampling={"alpha": 2, "num_rankings": 10, "seed": 0}, **wanted)
    )

    (ranked,) = [event for event in asked if isinstance(event, Ranked)]
    mine = [
        tuple(one.passage_ids)
        for one in _all(events, pb.AuditSample)
        if one.policy == pb.AUDIT_POLICY_SAMPLED
    ]
    assert mine == [tuple(NAMES[index] for index in row) for row in ranked.contexts.rows]
    first = _all(events, pb.AuditSample)[0]
    assert first.passage_ids == ["e", "d", "c"]
    assert _all(events, pb.AuditSettled)[0].reranker == "rankrag"
    # An audit reranks once, whatever the number of dials.
    assert len(mesh.reranker.calls) == 2


async def test_rankings_over_the_retriever_are_each_reranked(mesh: Mesh) -> None:
    mesh.reranker.scores = {name: place / 6 for place, name in enumerate(NAMES)}
    events = await mesh.audit(
        _reranked(k=2, rerank_depth=3, sampling_stage=pb.SAMPLING_STAGE_RETRIEVER, alphas=[1, 2])
    )
    for alpha in (1.0, 2.0):
        mine = ["".join(one.passage_ids) for one in _all(events, pb.AuditSample) if one.alpha == alpha]
        assert mine == ["".join(sorted(row, reverse=True)[:2]) for row in _drawn(alpha, 10, k=3)]
    assert not any(one.audit.HasField("exact_ee_d_norm") for one in _all(events, pb.ExposureReport))
    assert len(mesh.reranker.calls) == 1


@pytest.mark.parametrize("stage", [pb.SAMPLING_STAGE_RETRIEVER, pb.SAMPLING_STAGE_RERANKER])
async def test_a_reranker_that_is_away_is_named(mesh: Mesh, stage: pb.SamplingStage.ValueType) -> None:
    mesh.reranker.error = AWAY
    events = await mesh.audit(_reranked(k=2, rerank_depth=6, sampling_stage=stage, alphas=[1]))
    (degraded,) = _all(events, Degraded)
    assert (degraded.stage, degraded.action) == (Stage.RERANK, Action.RETRIEVER_ORDER)
    assert _all(events, pb.AuditSample)[0].passage_ids == ["a", "b"]
    assert _all(events, pb.AuditSettled)[0].reranker == "none"
    assert _all(events, pb.ExposureReport)[1].audit.HasField("exact_ee_d_norm")


async def test_an_expression_is_audited_as_it_is_asked(mesh: Mesh) -> None:
    mesh.retriever.places = {"wiki": [passage(f"w{i}") for i in range(COLLECTION_DEPTH)]}
    mesh.reranker.scores = {f"wiki/w{i}": i / 40 for i in range(COLLECTION_DEPTH)}
    useful = {"has_useful": True, "useful_passage_ids": ["wiki/w3"]}
    events = await mesh.audit(audit(alphas=[3], rankings=8, expression="Wiki@RR@4", labels=useful))
    asked = await mesh.run(ask_expression("Wiki@RR@4", sampling={"alpha": 3, "num_rankings": 8, "seed": 0}))

    (ranked,) = [event for event in asked if isinstance(event, Ranked)]
    found = _all(events, pb.AuditSettled)[0]
    mine = [
        tuple(one.passage_ids)
        for one in _all(events, pb.AuditSample)
        if one.policy == pb.AUDIT_POLICY_SAMPLED
    ]
    assert mine == [tuple(found.passage_ids[index] for index in row) for row in ranked.contexts.rows]
    assert _all(events, pb.AuditSample)[0].passage_ids == [f"wiki/w{i}" for i in (19, 18, 17, 16)]


async def test_no_passages_are_answered_from_memory(mesh: Mesh) -> None:
    mesh.retriever.passages = []
    events = await mesh.audit(audit(rankings=4))
    (degraded,) = _all(events, Degraded)
    assert degraded.reason == "NO_PASSAGES"
    assert [one.passage_ids for one in _all(events, pb.AuditSample)] == [[]] * (1 + 4 + 4)
    assert len(mesh.generator.batches) == 1
    assert all(one.ee_d_norm == 0.0 for one in _all(events, pb.ExposureReport))


async def test_without_a_useful_passage_there_is_no_oracle(mesh: Mesh) -> None:
    asked = audit(rankings=4)
    asked.ask.labels.useful_passage_ids[:] = ["z"]
    events = await mesh.audit(asked)
    assert {one.audit.policy for one in _all(events, pb.ExposureReport)} == {
        pb.AUDIT_POLICY_DETERMINISTIC,
        pb.AUDIT_POLICY_SAMPLED,
    }
    # The one useful passage was missed: it counts as an item that is never shown.
    assert all(one.HasField("ee_r_norm") for one in _all(events, pb.ExposureReport))


async def test_the_evaluator_gets_each_level_once(mesh: Mesh) -> None:
    await mesh.audit(audit(rankings=6))
    first = list(mesh.observer.posted)
    await mesh.audit(audit(rankings=6))
    again = mesh.observer.posted[len(first) :]

    assert [(one.pool.retriever, one.ask.sampling and one.ask.sampling.alpha) for one in first] == [
        ("bm25", None),
        ("bm25", 1.0),
        ("bm25", 4.0),
        ("oracle", None),
    ]
    assert [len(one.ranked.contexts.rows) for one in first] == [1, 6, 6, 6]
    for one in first:
        assert sorted(sample for answer in one.answers for sample in answer.samples) == list(
            range(len(one.ranked.contexts.rows))
        )
    # An audit that is run again says the same, and the evaluator takes an id once.
    assert [one.ask.id for one in again] == [one.ask.id for one in first]
    assert len({one.ask.id for one in first}) == 4
    mesh.generator.says = lambda _: "other"
    await mesh.audit(audit(rankings=6))
    assert not {one.ask.id for one in first} & {one.ask.id for one in mesh.observer.posted[8:]}


async def test_the_evaluator_gets_nothing_unless_asked(mesh: Mesh) -> None:
    await mesh.audit(audit(rankings=2, skip_observation=True))
    assert mesh.observer.posted == []


async def test_a_lost_observation_is_reported_once(mesh: Mesh) -> None:
    mesh.observer.error = AWAY
    events = await mesh.audit(audit(rankings=2))
    assert [one.action for one in _all(events, Degraded)] == [Action.OBSERVATION_DROPPED]


async def test_leaving_early_stops_the_work(mesh: Mesh) -> None:
    mesh.generator.batch_delay_s = 60.0
    async with aclosing(mesh.pipeline().audit(audit(), Deadline.after(120))) as events:
        assert isinstance(await anext(events), pb.AuditSettled)
        waiting = asyncio.ensure_future(anext(events))
        while not mesh.generator.batches_at_once:
            await asyncio.sleep(0.001)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    assert mesh.generator.batches_at_once == 0


async def test_the_deadline_holds(mesh: Mesh) -> None:
    mesh.generator.batch_delay_s = 60.0
    with pytest.raises(MeshError) as caught:
        await mesh.audit(audit(), seconds=0.3)
    assert caught.value.reason == "BUDGET_EXCEEDED"


def _reranked(*, alphas: Sequence[float] = (2.0,), **changes: object) -> Audit:
    asked = audit(alphas=alphas, rankings=10, k=5, rerank_depth=5)
    request: dict[str, object] = {"reranker": "rankrag", "sampling": {"num_rankings": 10}}
    one = ask(**(request | changes))
    return replace(asked, ask=replace(one, labels=asked.ask.labels, run_id="run", query_id="q1"))
