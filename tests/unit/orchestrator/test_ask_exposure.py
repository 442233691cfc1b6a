"""The report of an ask, by hand, and against what the evaluator measures of the same ask."""

from __future__ import annotations

import numpy as np
import pytest

from evenmesh.evaluator.v1 import evaluator_service_pb2 as evaluator_pb
from evenmesh_evaluator.observations import codec as evaluator_codec
from evenmesh_evaluator.observations.scores import measure as evaluator_measure
from evenmesh_orchestrator import codec
from evenmesh_orchestrator.asks.exposure import measure
from evenmesh_orchestrator.domain import Answered, Contexts, Observation, Pool, Ranked
from tests.unit.orchestrator.fakes import answer, ask, passage


def _pool(providers: str = "PQQ-") -> Pool:
    passages = [
        passage(name, provider="" if provider == "-" else provider)
        for name, provider in zip("abcd", providers, strict=True)
    ]
    return Pool(passages, np.arange(4.0), np.array([[0, 1, 2, 3]]), None, "bm25", "v1")


CONTEXTS = Contexts(np.array([[0, 1], [0, 2], [0, 3], [0, 1]]), np.array([-1.0, -1.0, -1.0, -1.0]))


def test_exposure_by_hand() -> None:
    # ε = (1, 1/2, 1/4, 1/4): EE-D = 1 + 1/4 + 1/16 + 1/16 = 11/8 of 2.
    exposure = measure(_pool(), CONTEXTS, [], evaluator_pb.Labels())
    assert list(exposure.exposure) == [1, 0.5, 0.25, 0.25]
    assert exposure.ee_d_norm == pytest.approx(11 / 16)
    assert not exposure.HasField("ee_r_norm")
    assert not exposure.HasField("expected_utility")
    # P has 1 of 2; Q has 1/2 + 1/4; the unknown provider is not listed but counts in the whole.
    assert [(p.name, p.exposure, p.share, p.HasField("target")) for p in exposure.providers] == [
        ("P", 1.0, 0.5, False),
        ("Q", 0.75, 0.375, False),
    ]


def test_relevance_and_utility_by_hand() -> None:
    # a and b are useful: ε* = (1, 1, 0, 0), EE-R = 1 + 1/2 of 2. Three of four samples are answered:
    # two right.
    answers = [Answered(answer("Rhine"), (0, 3), []), Answered(answer("Elbe"), (1,), [])]
    labels = evaluator_pb.Labels(
        has_useful=True,
        useful_passage_ids=["a", "b"],
        references=["Rhine"],
        metric=evaluator_pb.UTILITY_METRIC_EXACT_MATCH,
    )
    exposure = measure(_pool(), CONTEXTS, answers, labels)
    assert exposure.ee_r_norm == pytest.approx(3 / 4)
    assert exposure.expected_utility == pytest.approx(2 / 3)
    assert [(p.name, p.target) for p in exposure.providers] == [("P", 1.0), ("Q", 1.0)]


def test_nothing_shown_is_no_exposure() -> None:
    nothing = Pool([], np.empty(0), np.empty((1, 0), dtype=np.int64), None, "bm25", "v1")
    exposure = measure(nothing, Contexts(np.empty((1, 0), dtype=np.int64), None), [], evaluator_pb.Labels())
    assert (len(exposure.exposure), exposure.ee_d_norm, exposure.HasField("ee_r_norm")) == (0, 0.0, False)


@pytest.mark.parametrize("useful", [None, frozenset(), frozenset("ab"), frozenset("az"), frozenset("abcd")])
def test_the_evaluator_measures_the_same(useful: frozenset[str] | None) -> None:
    asked = ask(
        sampling={"num_rankings": 4, "alpha": 2},
        labels=evaluator_pb.Labels(
            has_useful=useful is not None,
            useful_passage_ids=sorted(useful or ()),
            references=["the river Rhine"],
        ),
    )
    pool = _pool()
    answers = [Answered(answer("Rhine"), (0, 3), []), Answered(answer("river Elbe"), (1,), [])]
    here = measure(pool, CONTEXTS, answers, asked.labels)

    observation = Observation(asked, pool, Ranked(CONTEXTS, "none", ""), answers, {})
    message = evaluator_pb.Observation.FromString(codec.observation(observation, with_text=True))
    there = evaluator_measure(evaluator_codec.observation(message, now_us=0))
    assert there.quantities["ee_d_norm"] == here.ee_d_norm
    assert there.quantities["ee_r_norm"] == (here.ee_r_norm if here.HasField("ee_r_norm") else None)
    assert there.quantities["expected_utility"] == here.expected_utility
    providers = there.providers
    assert providers is not None
    targets = [None] * len(providers.names) if providers.target is None else providers.target.tolist()
    rows = zip(providers.names, zip(providers.exposure.tolist(), targets, strict=True), strict=True)
    assert {p.name: (p.exposure, p.target if p.HasField("target") else None) for p in here.providers} == {
        k: v for k, v in rows if k
    }
    assert there.num_unanswered == 1
