"""The study of agents: averages, tests, curves and agreement by hand, and sentences that say what was found."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from evenmesh_core.errors import InvalidInput
from evenmesh_lab.figures.agents import agents_figures
from evenmesh_lab.files.agent_runs import AgentRunRecord
from evenmesh_lab.reports.markdown import as_markdown
from evenmesh_lab.studies.agents import MACRO, WITHOUT_IDS, AgentsStudy, measure
from evenmesh_lab.studies.agents_tables import sentences, tables
from evenmesh_lab.studies.uncertainty import Bootstrap

QUICK = Bootstrap(num_resamples=200)
ONE, TWO = ("qa", "fid"), ("slots", "fid")


def records(
    agent: tuple[str, str], system: str, utilities: Sequence[float | None], **fields: Any
) -> list[AgentRunRecord]:
    ranking = fields.pop("ranking", ["a", "b", "c"])
    return [
        AgentRunRecord(
            task_id=agent[0],
            model_id=agent[1],
            query_id=f"{agent[0]}-{number}",
            system=system,
            ranking=ranking,
            utility=utility,
            **fields,
        )
        for number, utility in enumerate(utilities)
    ]


def study(*parts: list[AgentRunRecord], **options: Any) -> AgentsStudy:
    return measure([one for part in parts for one in part], bootstrap=QUICK, **options)


def table(found: AgentsStudy, name: str) -> list[dict[str, Any]]:
    one = next(one for one in tables(found) if one.name == name)
    return [dict(zip((column.name for column in one.columns), row, strict=True)) for row in one.rows]


def test_agents_weigh_the_same_however_many_queries_they_have() -> None:
    found = study(
        records(ONE, "bm25", [1, 0, 0, 0]),
        records(TWO, "bm25", [1, 0]),
        records(ONE, "urag", [1, 1, 0, 0], iteration=1),
        records(TWO, "urag", [1, 1], iteration=1),
    )
    macro = {one.name: one.macro.value for one in found.systems}
    assert macro == {"bm25": pytest.approx((1 / 4 + 1 / 2) / 2), "urag": pytest.approx((2 / 4 + 2 / 2) / 2)}
    (pair,) = (one for one in found.comparisons if one.agent == MACRO)
    assert (pair.first, pair.second) == ("urag", "bm25")
    assert pair.difference.value == pytest.approx((1 / 4 + 1 / 2) / 2)
    assert pair.mcnemar is not None
    # one query of each agent is right with uRAG alone
    assert (pair.mcnemar.only_first, pair.mcnemar.only_second) == (1 + 1, 0)
    assert pair.mcnemar.p_value == pytest.approx(2 * (1 / 2) ** 2)
    rows = table(found, "systems")
    assert [row["agent"] for row in rows] == ["qa/fid", "slots/fid", MACRO]
    assert [row["queries"] for row in rows] == [4, 2, 6]
    assert "N = 6 queries, 6 answers of 2 agents" in found.statement()


def test_all_agents_are_decided_by_their_mean_not_by_all_answers() -> None:
    # bm25 is right on more answers, urag on a larger share of the mean agent's, whose queries are few
    found = study(
        records(ONE, "bm25", [1] * 40 + [0] * 360),
        records(TWO, "bm25", [0] * 10),
        records(ONE, "urag", [0] * 40 + [1] * 10 + [0] * 350, iteration=1),
        records(TWO, "urag", [1] * 3 + [0] * 7, iteration=1),
    )
    (pair,) = (one for one in found.comparisons if one.agent == MACRO)
    assert pair.difference.value == pytest.approx((-30 / 400 + 3 / 10) / 2)
    assert pair.mcnemar is not None
    assert (pair.mcnemar.only_first, pair.mcnemar.only_second) == (10 + 3, 40)
    assert pair.mcnemar.p_value < 0.001 < 0.05 < pair.p_value
    assert (pair.p_holm, pair.verdict) == (pair.p_value, "not significant")
    everyone = table(found, "significance")[-1]
    assert (everyone["agent"], everyone["urag"], everyone["bm25"]) == (MACRO, "–", "–")


def test_an_insignificant_difference_is_reported_as_such() -> None:
    # Of 40 queries 8 are right with uRAG alone, and 7 with BM25 alone.
    found = study(
        records(ONE, "bm25", [0] * 8 + [1] * 7 + [0, 1] * 12 + [1]),
        records(ONE, "urag", [1] * 8 + [0] * 7 + [0, 1] * 12 + [1], iteration=1),
    )
    (sentence,) = sentences(found)
    assert sentence.startswith("urag − bm25: +0.0250")
    assert sentence.endswith("The first is higher, but not significantly: this may be chance.")
    (pair,) = (one for one in found.comparisons if one.agent == MACRO)
    assert pair.verdict == "not significant"


@pytest.mark.parametrize(("right", "p_value"), [(1, math.nan), (0, 1.0)])
def test_a_mean_of_agents_has_no_interval_where_few_queries_differ(right: int, p_value: float) -> None:
    # The bootstrap draws no query that differs in a third of its resamples, or never another value.
    found = study(records(ONE, "bm25", [0] * 40), records(ONE, "urag", [right] + [0] * 39, iteration=1))
    (pair,) = (one for one in found.comparisons if one.agent == MACRO)
    assert pair.difference.value == pytest.approx(right / 40)
    assert np.isnan([pair.difference.low, pair.difference.high]).all()
    assert pair.difference.missing == f"only {right} of 40 queries differ"
    assert pair.p_value == pytest.approx(p_value, nan_ok=True)


def test_what_is_better_is_marked() -> None:
    found = study(records(ONE, "bm25", [0] * 30), records(ONE, "offline-ium", [1] * 30, iteration=3))
    assert [row["offline_ium"] for row in table(found, "significance")] == ["1", "1"]
    assert [row["bm25"] for row in table(found, "significance")] == ["–", "–"]
    (sentence,) = sentences(found)
    assert sentence.endswith("The first is better.")


def test_the_last_round_counts_and_all_are_drawn() -> None:
    ranked = [records(ONE, "offline-ium", [0, 0, at / 3], iteration=at) for at in range(4)]
    plain = [records(ONE, "offline-ium", [0, 0, 0], iteration=at, personalised=False) for at in range(4)]
    found = study(*ranked, *plain)
    assert [one.name for one in found.systems] == [f"offline-ium{WITHOUT_IDS}", "offline-ium"]
    assert [one.iteration for one in found.systems] == [3, 3]
    assert found.systems[1].macro.value == pytest.approx((0 + 0 + 3 / 3) / 3)
    curve = [point for point in found.rounds if point.system == "offline-ium"]
    assert [point.place for point in curve] == [0, 1, 2, 3]
    assert [point.macro.value for point in curve] == pytest.approx([at / 3 / 3 for at in range(4)])
    (sentence,) = sentences(found)
    assert sentence.startswith(f"offline-ium − offline-ium{WITHOUT_IDS}: +0.3333")


def test_seeds_are_averaged_by_query() -> None:
    found = study(
        records(ONE, "urag", [1, 0, 1], iteration=1, seed=1),
        records(ONE, "urag", [0, 0, 1], iteration=1, seed=2),
    )
    (one,) = found.systems
    assert one.seeds == (1, 2)
    assert one.macro.value == pytest.approx((1 / 2 + 0 + 1) / 3)
    assert one.macro_by_seed == pytest.approx((2 / 3, 1 / 3))
    assert "by seed 0.667, 0.333" in tables(found)[0].note


def test_an_answer_that_is_missing_is_counted_and_left_out() -> None:
    found = study(records(ONE, "bm25", [1, None, 0]), records(ONE, "dense", [1, 1, 0]))
    bm25, dense = found.systems
    assert bm25.macro.value == pytest.approx(1 / 2)
    assert bm25.macro.undefined == 1
    assert dense.macro.value == pytest.approx(2 / 3)
    (pair,) = (one for one in found.comparisons if one.agent == MACRO)
    assert pair.difference.value == 0
    assert pair.difference.defined == 2
    assert "Not all systems were asked all queries" in tables(found)[0].note


def test_streams_are_compared_in_thirds() -> None:
    learning = [
        one
        for position, part in enumerate(records(ONE, "online-ium", [0, 0, 0, 0, 1, 1], batch_size=2, seed=1))
        for one in [part.model_copy(update={"position": position, "iteration": position // 2})]
    ]
    found = study(learning, records(ONE, "frozen", [0, 0, 0, 0, 0, 0]))
    thirds = [one for one in found.thirds if one.agent == MACRO]
    assert [one.num_queries for one in thirds] == [2, 2, 2]
    # What was asked before the last training counts, too.
    assert found.systems[0].macro.value == pytest.approx(2 / 6)
    assert found.systems[0].iteration == 2
    assert [one.difference.value for one in thirds] == [0, 0, 2 / 2]
    assert sentences(found)[-1].startswith(
        "online-ium − frozen over the last third of the stream (2 queries)"
    )


def test_batch_sizes() -> None:
    sizes = {size: records(ONE, "online-ium", [0, size / 64], batch_size=size) for size in (16, 64)}
    found = study(*sizes.values(), batch_size=16)
    assert [(one.place, one.macro.value) for one in found.batches] == [(16, 1 / 4 / 2), (64, 1 / 2)]
    assert found.systems[0].batch_size == 16
    with pytest.raises(InvalidInput, match="one of 16, 64"):
        study(*sizes.values())
    with pytest.raises(InvalidInput, match="one of 16, 64"):
        study(*sizes.values(), batch_size=32)
    papers = records(ONE, "online-ium", [1, 1], batch_size=256)
    assert study(*sizes.values(), papers).systems[0].batch_size == 256


def test_lists_of_agents_that_asked_the_same() -> None:
    other = ("qa", "in-prompt")
    found = study(
        records(ONE, "offline-ium", [1, 1], iteration=1, ranking=["a", "b", "c", "d"]),
        records(other, "offline-ium", [1, 1], iteration=1, ranking=["b", "a", "d", "c"]),
        records(TWO, "offline-ium", [1, 1], iteration=1),
        depth=3,
    )
    (pair,) = found.agreements
    assert (pair.first, pair.second) == ("qa/fid", "qa/in-prompt")
    # a b c and b a d: of ab, ac, ad, bc, bd, cd the first and the last are ordered the other way
    assert pair.tau.value == pytest.approx((4 - 2) / 6)
    assert pair.jaccard.value == pytest.approx(2 / 4)
    assert pair.tau.defined == 2
    drawn = agents_figures(found)
    assert list(drawn) == ["agents", "tau", "jaccard"]


def test_figures_and_tables_name_what_they_stand_on() -> None:
    found = study(
        *(records(ONE, "offline-ium", [at / 3, 1], iteration=at, reranker_version="v") for at in range(2)),
        *(records(ONE, "online-ium", [1, 1], batch_size=size, agent_version="g") for size in (2, 4)),
        batch_size=2,
    )
    drawn = agents_figures(found, stated="2 cores")
    assert {"agents", "rounds", "batches"} <= set(drawn)
    for made in drawn.values():
        words = " ".join(one.get_text() for one in made.texts).replace("\n", " ")
        assert "N = 2 queries" in words
        assert "generators g" in words
        assert "reranker v" in words
        assert "2 cores" in words
    assert "| macro-average |" in as_markdown(tables(found))


def test_nothing_to_study() -> None:
    with pytest.raises(InvalidInput, match="records"):
        measure([])
    with pytest.raises(InvalidInput, match="depth"):
        measure(records(ONE, "bm25", [1]), depth=0)
