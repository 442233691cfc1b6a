"""The simulation of fairness over time, on two questions that a reader can follow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("bm25s")
pytest.importorskip("torch")

from benchmarks.over_time import answers, exact, policies, tables
from benchmarks.over_time.bound import nearest
from benchmarks.over_time.policies import EqualDials, Ledger, context, dial, program, simulate
from benchmarks.over_time.sets import SETS, Pool, pubmed_million
from benchmarks.page import placed
from evenmesh_core.exposure_balance import ExposureBalance

PAGE = Path(__file__).resolve().parents[3] / "docs" / "studies" / "over-time.md"


def _pool() -> Pool:
    # A deserves 0.6 of a context and B 0.4; the one useful passage is A's.
    return Pool(np.array([3.0, 1.0]), ["A", "B"], np.array([1.0, 0.0]), np.array([0.6, 0.4]))


@pytest.fixture(autouse=True)
def one_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policies, "K", 1)
    monkeypatch.setattr("benchmarks.over_time.bound.K", 1)
    monkeypatch.setattr(exact, "K", 1)


def test_what_is_counted_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policies, "STEP", 2)
    ledger, pool = Ledger(), _pool()
    ledger.add(pool, np.array([1.0, 0.0]))
    ledger.add(pool, np.array([0.5, 0.5]))
    found = ledger.outcome("dial", 8.0)
    assert found.utility == pytest.approx(0.75)
    # A got 1.5 contexts and deserved 1.2: a part of 0.3 / 2 asks is with the wrong provider.
    assert list(found.unfairness) == pytest.approx([0.15])
    assert list(found.largest) == pytest.approx([0.15])
    assert list(found.near) == [0.0]
    # By score, A is worth 1 and B 0: half a context of two is given up.
    assert list(found.loss) == pytest.approx([0.25])
    # The mean exposure is (0.75, 0.25).
    assert found.disparity == pytest.approx(0.625)
    assert ledger.balance(pool).owed.tolist() == pytest.approx([-0.3, 0.3])
    assert ledger.useful == {pool: pytest.approx(0.75)}


def test_the_program_gives_no_provider_more_than_it_deserves() -> None:
    for slack, wanted in ((0.0, [0.6, 0.4]), (0.5, [0.9, 0.1])):
        shown = program(slack)(_pool(), ExposureBalance())
        np.testing.assert_allclose(shown.inclusion, wanted, atol=1e-9)


def test_every_policy_is_tried_on_the_same_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policies, "STEP", 40)
    # The two are a whole range of scores apart: a smaller limit would keep their order.
    monkeypatch.setattr(policies, "LIMIT", 0.5)
    found = simulate([_pool()] * 40)
    assert {one.policy for one in found} == {"dial", "program", "controller"}
    sharp = next(one for one in found if (one.policy, one.setting) == ("dial", 100.0))
    strongest = [one for one in found if one.policy == "controller"][-1]
    assert strongest.beside is not None
    assert strongest.unfairness[-1] < sharp.unfairness[-1]
    for one in found:
        assert (one.beside is None) == (one.policy == "dial")
        if one.beside is not None:
            assert one.beside.disparity == pytest.approx(one.disparity, abs=0.01)


def test_a_dial_of_a_disparity_has_it() -> None:
    pool = _pool()
    alpha = EqualDials([pool, pool]).find(0.7)
    inclusion = dial(alpha)(pool, ExposureBalance()).inclusion
    assert policies.disparity([inclusion]) == pytest.approx(0.7, abs=2e-3)


def test_contexts_follow_the_exposure_and_the_ask_alone_decides_the_noise() -> None:
    for policy in (dial(2.0), program(0.0)):
        shown = policy(_pool(), ExposureBalance())
        drawn = [context(shown, number) for number in range(400)]
        assert drawn == [context(shown, number) for number in range(400)]
        share = np.mean([places == (0,) for places in drawn])
        assert share == pytest.approx(shown.inclusion[0], abs=0.08)


def test_no_policy_comes_nearer_than_the_bound() -> None:
    pool = _pool()
    # At no price A may have its 0.6; at a tenth of relevance it keeps 0.9 of the contexts.
    assert nearest([pool] * 3, lambda one: one.relevance, 1.0) == pytest.approx(0.0, abs=1e-9)
    assert nearest([pool] * 3, lambda one: one.relevance, 0.1) == pytest.approx(0.3)
    # Who deserves more than one place of a context can hold never gets it.
    alone = Pool(np.array([3.0, 1.0, 1.0]), ["A", "B", "B"], np.ones(3), np.array([0.6, 0.2, 0.2]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("benchmarks.over_time.bound.K", 2)
        assert nearest([alone], lambda one: one.useful, 1.0) == pytest.approx(0.1)


def test_the_exact_alternative_pays_a_debt_that_is_worth_its_price() -> None:
    pool = _pool()
    none = ExposureBalance()
    # Giving B its 0.4 costs 0.4 of relevance, and makes both providers 0.4 less apart.
    assert exact.exposure(pool, none, 0.4).tolist() == pytest.approx([1.0, 0.0])
    assert exact.exposure(pool, none, 0.6).tolist() == pytest.approx([0.6, 0.4])
    behind = ExposureBalance(["A", "B"], np.array([0.0, 0.3]), np.array([0.3, 0.0]))
    assert exact.exposure(pool, behind, 0.6).tolist() == pytest.approx([0.3, 0.7])


def test_a_million_of_pubmeds_numbers_is_a_provider() -> None:
    assert [pubmed_million({"id": one}) for one in ("pmid999999", "pmid28293123")] == ["0", "28"]


def test_the_page_has_the_tables_of_the_numbers_beside_it() -> None:
    page = PAGE.read_text(encoding="utf-8")
    found = tables.tables()
    assert {"reached", *SETS} <= set(found)
    assert placed(page, found) == page


def test_answers_are_compared_question_by_question() -> None:
    outcomes: list[dict[str, Any]] = [
        {"policy": "dial", "setting": 8.0, "beside": "", "disparity": 0.9, "unfairness": 0.1},
        {"policy": "controller", "setting": 0.25, "beside": "", "disparity": 0.8, "unfairness": 0.01},
        {"policy": "dial", "setting": 5.5, "beside": "controller 0.25", "disparity": 0.8, "unfairness": 0.1},
    ]
    scores = {("dial", "8"): (0.5, 0.5), ("controller", "0.25"): (0.5, 1.0), ("dial", "5.5"): (0.25, 0.75)}
    rows = [
        {
            "policy": policy,
            "setting": setting,
            "question": str(at),
            "exact_match": "0",
            "f1": str(one),
            "useful": "1",
        }
        for (policy, setting), some in scores.items()
        for at, one in enumerate(some)
    ]
    lines = tables.answered(rows, outcomes).splitlines()
    assert len(lines) == 4
    # Both questions differ by a quarter, so that there is no spread; of exact match nothing differs.
    assert lines[-1].endswith("| 5.5 | 0.250 (0.250 to 0.250) | 0.000, no interval |")
    assert lines[-2].endswith("| 0.500 (0.500 to 0.500) |  |  |  |")


def test_the_answers_of_a_stopped_run_are_known(tmp_path: Path) -> None:
    journal = answers.Journal(tmp_path / "build" / "answers.jsonl")
    journal.add("q1", {"0-1": "a"})
    journal.add("q1", {"0-2": "b"})
    assert answers.Journal(tmp_path / "build" / "answers.jsonl").known == {"q1": {"0-1": "a", "0-2": "b"}}
    pool = Pool(np.array([3.0, 1.0]), ["A", "B"], np.array([1.0, 0.0]), np.array([0.6, 0.4]), "q1")
    outcome = policies.follow([pool], dial(1.0)).outcome("dial", 1.0)
    followed = answers.Followed(outcome, [answers.Drawn(pool, (0, 1)), answers.Drawn(pool, (0, 1))])
    journal.add("q1", {"0-1": "river"})
    (row,) = answers.table([followed], journal, {"q1": ["the river Rhine"]}, ["q1"])
    assert (row["asks"], row["exact_match"], row["f1"]) == (2, "0", "0.6667")
