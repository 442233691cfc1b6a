"""What an audit of many queries asks, and the records it writes."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from evenmesh.types.audit import AuditSample
from evenmesh.types.events import Failed
from evenmesh_lab.files import read_audits, read_labels, read_queries
from evenmesh_studies.audits.plan import AuditPlan, RankingSystem, records
from evenmesh_studies.runner import Shard
from evenmesh_studies.runner.queries import identifier


@pytest.fixture
def plan(tmp_path: Path) -> AuditPlan:
    """Three queries, two systems, two models."""
    queries, labels = tmp_path / "q.jsonl", tmp_path / "l.qrels"
    lines = [{"query_id": f"q{i}", "question": f"Q{i}?", "references": ["x", "y"]} for i in range(3)]
    lines[2]["passages"] = [{"id": "own", "text": "mine", "title": "t", "attributes": {"provider": "P"}}]
    queries.write_text("".join(json.dumps(line) + "\n" for line in lines))
    labels.write_text("q0 0 p2 1\nq0 0 p1 2\nq0 0 p3 0\nq1 0 p1 1\nq2 0 own 1\n")
    return AuditPlan(
        queries=read_queries(queries),
        labels=read_labels(labels),
        systems=[RankingSystem("bm25"), RankingSystem(expression="Wiki@RR@5", reranker="rankrag")],
        models=["m1", "m2"],
        collection="c",
        k=3,
    )


def test_units_are_every_query_with_every_system_and_model(plan: AuditPlan) -> None:
    names = [json.loads(unit.name) for unit in plan.units()]
    assert names[:5] == [
        ["q0", "bm25", "m1"],
        ["q0", "bm25", "m2"],
        ["q0", "Wiki@RR@5", "m1"],
        ["q0", "Wiki@RR@5", "m2"],
        ["q1", "bm25", "m1"],
    ]
    assert len(names) == 3 * 2 * 2
    shards = [unit.name for place in range(2) for unit in plan.units(Shard(place, 2))]
    assert sorted(shards) == sorted(unit.name for unit in plan.units())


def test_a_unit_is_asked_as_planned(plan: AuditPlan) -> None:
    first, _, expression, *_ = plan.units()
    options = plan.options(first)
    assert (options["retriever"], options["collection"], options["k"], options["model"]) == (
        "bm25",
        "c",
        3,
        "m1",
    )
    assert (options["useful"], options["references"]) == (["p1", "p2"], ("x", "y"))
    assert (options["samples"], options["seed"], options["query_id"]) == (100, 0, "q0")
    assert options["run_id"] == f"audit-{plan.digest}"
    asked = plan.options(expression)
    assert (asked["expression"], asked["reranker"]) == ("Wiki@RR@5", "rankrag")
    assert not {"retriever", "collection", "k"} & asked.keys()
    own = plan.options(next(unit for unit in plan.units() if unit.query.query_id == "q2"))
    (passage,) = own["passages"] or ()
    assert (passage.id, passage.provider) == ("own", "P")
    assert "collection" not in own
    alone = replace(plan, answers=False).options(first)
    assert (alone["num_answers"], alone["references"]) == (0, None)


def test_grades_below_the_least_are_not_useful(plan: AuditPlan) -> None:
    (query, *_) = plan.queries.queries
    assert plan.useful(query) == ["p1", "p2"]
    assert replace(plan, min_grade=2.0).useful(query) == ["p1"]


def test_settings_tell_what_decides_the_results(plan: AuditPlan) -> None:
    settings = plan.settings()
    assert plan.settings(Shard(1, 2))["shard"] == "1/2"
    for changed in (
        replace(plan, alphas=(1.0,)),
        replace(plan, seed=1),
        replace(plan, models=["m1"]),
        replace(plan, until_width=0.2),
        replace(plan, systems=[RankingSystem("bm25", reranker="rankrag")]),
    ):
        assert changed.settings() != settings
        assert changed.digest != plan.digest
    assert replace(plan, timeout=1.0).settings() == settings
    plan.labels.path.write_text("q0 0 p1 1\n")
    assert plan.settings() != settings


def test_records_are_read_back(plan: AuditPlan, tmp_path: Path) -> None:
    unit = next(plan.units())
    samples = [
        AuditSample("deterministic", None, 0, ("a", "b"), "x", 1.0, None, None, "m1", "v"),
        AuditSample("sampled", 0.0, 0, ("b", "a"), "", 0.0, -0.5, None, "m1", "v"),
        AuditSample("sampled", 0.0, 1, ("a", "b"), None, None, -0.7, Failed((1,), "X", "Y", "", ""), "", ""),
        AuditSample("oracle", None, 0, ("a", "b"), "x", 1.0, None, None, "m1", "v"),
        AuditSample("sampled", 0.0, 2, (), "x", 1.0, None, None, "m1", "v"),
    ]
    path = tmp_path / "m1.jsonl"
    path.write_text("".join(f"{line}\n" for line in records(unit, samples, ("a", "b", "c"))))

    (audit,) = read_audits([path])

    assert (audit.query_id, audit.references) == ("q0", ("x", "y"))
    assert [(one.system, one.alpha, one.answers, one.utilities) for one in audit.samplings] == [
        ("bm25", None, ["x"], [1.0]),
        ("bm25", 0.0, ["", None], [0.0, None]),
        ("bm25/oracle", None, ["x"], [1.0]),
    ]
    assert audit.samplings[1].log_probabilities == [-0.5, -0.7]
    assert path.read_text().count("references") == 1
    assert audit.pools == {"bm25": ("a", "b", "c"), "bm25/oracle": ("a", "b", "c")}
    assert path.read_text().count("pool") == 2


def test_names_of_systems_tell_the_reranker() -> None:
    assert RankingSystem("bm25").name == "bm25"
    assert RankingSystem("bm25", reranker="rankrag").name == "bm25+rankrag"
    assert RankingSystem(expression="Wiki@5").name == "Wiki@5"


def test_long_ids_fit_the_mesh() -> None:
    assert identifier("q" * 128) == "q" * 128
    assert identifier("q" * 129).startswith("sha256:")
    assert identifier("q" * 129) != identifier("r" * 129)
