"""All problems of an audit are reported at once, before anything is generated."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from evenmesh import Collection, Passage
from evenmesh.inventory import GeneratorModel
from evenmesh.types.audit import AuditSettled
from evenmesh.wire.errors import InvalidField
from evenmesh_lab.files import read_labels, read_queries
from evenmesh_studies.audits import checks
from evenmesh_studies.audits.checks import check
from evenmesh_studies.audits.plan import AuditPlan, RankingSystem


@dataclass
class FakeClient:
    """A mesh with the collections wiki, which is its own, and other."""

    addresses: str = ""
    asked: list[dict[str, Any]] = field(default_factory=list)
    embedded: float = 1.0

    def audit(self, question: str, **options: Any) -> Iterator[AuditSettled]:
        assert (options["num_answers"], options["oracle"], options["observe"]) == (0, 0, False)
        self.asked.append(options)
        if options.get("retriever") == "none-such":
            raise InvalidField("retriever", "there is no 'none-such'")
        version = "" if options.get("passages") else "v-wiki"
        yield AuditSettled(
            (), (), "bm25", f"W={version}" if "expression" in options else version, "none", "", 1
        )

    def collections(self) -> list[Collection]:
        made = datetime(2026, 11, 22, tzinfo=UTC)
        return [
            Collection(name, f"v-{name}", 9, 0, "encoder", "unicode", "", made, embedded=self.embedded)
            for name in ("other", "wiki")
        ]

    def passages(self, name: str) -> Iterator[Passage]:
        assert name == "wiki"
        yield from (Passage(one, "text") for one in ("p1", "p2"))


@pytest.fixture
def mesh(monkeypatch: pytest.MonkeyPatch) -> FakeClient:
    monkeypatch.setattr(checks, "models", lambda _: [GeneratorModel("m", "bfloat16")])
    return FakeClient()


@pytest.fixture
def planned(tmp_path: Path) -> Callable[..., AuditPlan]:
    def make(*queries: dict[str, Any], labels: str = "q1 0 p1 1\nq1 0 p2 1\n") -> AuditPlan:
        path, judged = tmp_path / "q.jsonl", tmp_path / "l.qrels"
        lines = queries or ({"query_id": "q1", "question": "?", "references": ["x"]},)
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        judged.write_text(labels)
        return AuditPlan(read_queries(path), read_labels(judged), [RankingSystem("bm25")], ["m"])

    return make


def test_a_sound_audit_has_no_problems(planned: Callable[..., AuditPlan], mesh: FakeClient) -> None:
    found = check(planned(), mesh)  # type: ignore[arg-type]  # as far as it is used
    assert found.problems == []
    assert ["m computes in bfloat16" in note for note in found.notes] == [True]


def test_all_problems_are_reported_at_once(planned: Callable[..., AuditPlan], mesh: FakeClient) -> None:
    mesh.embedded = 0.5
    plan = planned(
        {"query_id": "q1", "question": "?", "references": ["x"]},
        {"query_id": "q1", "question": "again?", "references": ["x"]},
        {"query_id": "q2", "question": "?", "references": [" "]},
        {"query_id": "q3", "question": "?", "references": ["x"], "passages": [{"id": "own", "text": "t"}]},
        {"query_id": "q4", "question": "  ", "references": ["x"], "search": "y" * 8193},
        labels="q1 0 p1 1\nq1 0 gone 1\nq3 0 p1 1\n",
    )
    plan = replace(
        plan,
        systems=[RankingSystem("none-such"), RankingSystem("bm25"), RankingSystem("bm25")],
        models=["m", "m", "tiny"],
        alphas=[1.0, 200.0, 1.0],
        until_width=2.0,
        level=1.0,
    )
    found = check(plan, mesh, ["--shard 2/2: no"])  # type: ignore[arg-type]
    queries, labels = plan.queries.path, plan.labels.path
    assert found.problems == [
        "--shard 2/2: no",
        f"{queries}:2: repeats the query 'q1' of line 1",
        f"{queries}: question: must not be empty or only white space, in these queries: q4",
        f"{queries}: search: must be at most 8192 bytes, has 8193, in these queries: q4",
        f"{queries}: these queries have no references to score answers against: q2",
        f"{queries}: {labels} has no labels for these queries: q2, q4",
        f"{labels}: judges passages that query 'q3' does not bring: p1",
        "--alpha 200: allowed: 0 to 100",
        "--alpha: given twice: 1",
        "--until-width 2: allowed: between 0 and 1",
        "--level 1: allowed: between 0 and 1",
        "systems given twice: bm25",
        "--model: given twice: m",
        "--model tiny: there is no such model; there are m",
        "none-such: retriever: there is no 'none-such'",
        "collection 'wiki': 50.0% of its passages have vectors; results change until all have; "
        "`evenmesh collections` shows progress",
        f"{labels}: judges passages that the collection 'wiki' does not have: gone",
    ]


def test_the_mesh_s_own_collection_is_held_against_the_labels(
    planned: Callable[..., AuditPlan], mesh: FakeClient
) -> None:
    plan = planned(labels="q1 0 p1 1\nq1 0 p2 1\nq1 0 p3 0\n")
    assert plan.collection is None
    found = check(plan, mesh)  # type: ignore[arg-type]
    assert found.problems == [
        f"{plan.labels.path}: judges passages that the collection 'wiki' does not have: p3"
    ]


def test_nothing_is_looked_up_where_queries_bring_their_passages(
    planned: Callable[..., AuditPlan], mesh: FakeClient
) -> None:
    own = [{"id": "p7", "text": "t"}, {"id": "p8", "text": "t"}]
    plan = planned(
        {"query_id": "q1", "question": "?", "references": ["x"], "passages": own},
        labels="q1 0 p7 1\nq1 0 p8 1\n",
    )
    mesh.embedded = 0.0
    assert check(plan, mesh).problems == []  # type: ignore[arg-type]


def test_labels_are_not_compared_with_expressions_whose_collections_are_checked_all_the_same(
    planned: Callable[..., AuditPlan], mesh: FakeClient
) -> None:
    plan = replace(planned(labels="q1 0 W/p1 1\nq1 0 W/p2 1\n"), systems=[RankingSystem(expression="W@5")])
    found = check(plan, mesh)  # type: ignore[arg-type]
    assert found.problems == []
    assert (
        "labels are not compared with the ids of expressions' sources, which cannot be listed" in found.notes
    )
    mesh.embedded = 0.999
    found = check(plan, mesh)  # type: ignore[arg-type]
    assert [one.startswith("collection 'wiki': 99.9%") for one in found.problems] == [True]
