"""All problems of a study are reported at once, before anything is generated."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc
import pytest

from evenmesh import AskResult, Collection, Retrieved
from evenmesh.inventory import GeneratorModel
from evenmesh.wire.errors import InvalidField, MeshError
from evenmesh_lab.files import read_queries
from evenmesh_studies.ensembles import checks
from evenmesh_studies.ensembles.checks import check
from evenmesh_studies.ensembles.plan import Dataset, EnsemblePlan
from evenmesh_studies.ensembles.pool import read_pool


@dataclass
class FakeClient:
    """A mesh with one source, A."""

    addresses: str = ""
    probed: list[str] = field(default_factory=list)
    fails: MeshError | None = None
    embedded: float = 1.0

    def collections(self) -> list[Collection]:
        """The collection behind A, as it is searched at by A@1, and one that is not searched."""
        made = datetime(2026, 11, 22, tzinfo=UTC)
        return [
            Collection(name, version, 9, 0, "encoder", "unicode", "", made, embedded=self.embedded)
            for name, version in (("wiki", "3"), ("other", "99"))
        ]

    def answer(self, question: str, *, expression: str, num_answers: int, **options: Any) -> AskResult:
        assert num_answers == 0
        self.probed.append(expression)
        if self.fails is not None:
            raise self.fails
        if "B" in expression:
            raise InvalidField("expression", "there is no source 'B'")
        if expression == "ReFree":
            return AskResult(question)
        return AskResult(question, retrieved=Retrieved((), (), expression, f"A={len(expression)}"))


@pytest.fixture
def mesh(monkeypatch: pytest.MonkeyPatch) -> FakeClient:
    there = [
        GeneratorModel("small", "float32", ("fusion_in_decoder", "retrieval_free")),
        GeneratorModel("large", "bfloat16", ("in_prompt", "retrieval_free", "parametric_knowledge")),
    ]
    monkeypatch.setattr(checks, "models", lambda _: there)
    return FakeClient()


@pytest.fixture
def planned(tmp_path: Path) -> Callable[..., EnsemblePlan]:
    def make(*lines: str, pool: str = "A@1,ReFree", models: tuple[str, ...] = ("small",)) -> EnsemblePlan:
        path = tmp_path / "q.jsonl"
        path.write_text("".join(f"{line}\n" for line in lines))
        return EnsemblePlan([Dataset("q", read_queries(path))], read_pool(pool), models, seed=1)

    return make


GOOD = tuple(f'{{"query_id": "q{i}", "question": "?", "references": ["x"]}}' for i in range(8))


def test_a_sound_study_has_no_problems_and_knows_its_indexes(
    planned: Callable[..., EnsemblePlan], mesh: FakeClient
) -> None:
    found, versions = check(planned(*GOOD, pool="A@1,A@10,ReFree", models=("large",)), mesh)  # type: ignore[arg-type]
    assert found.problems == []
    assert versions == {"A@1": "A=3", "A@10": "A=4"}
    assert ["large computes in bfloat16" in note for note in found.notes] == [True]


def test_all_problems_are_reported_at_once(planned: Callable[..., EnsemblePlan], mesh: FakeClient) -> None:
    lines = (
        '{"query_id": "q1", "question": "?", "references": ["x"]}',
        '{"query_id": "q1", "question": "?", "references": ["x"]}',
        '{"query_id": "q2", "question": "?", "references": [" "]}',
        '{"query_id": "q3", "question": "?", "references": ["x"], "passages": [{"id": "p", "text": "t"}]}',
    )
    plan = replace(planned(*lines, pool="A@1,B@1,A@1@CP,PK,A@1", models=("small", "tiny")), train_share=1e-9)
    found, _ = check(plan, mesh, ["--judge oracle: no"])  # type: ignore[arg-type]
    path = plan.datasets[0].queries.path
    assert found.problems == [
        "--judge oracle: no",
        "--pool: has A@1 twice",
        f"{path}:2: repeats the query 'q1' of line 1",
        f"{path}: these questions have no answers to judge by: q2",
        f"{path}: these questions bring passages, but retrievers search the mesh's: q3",
        f"{path}: of 3 questions, --train-share 1e-09 and --seed 1 leave none to train on",
        "--model tiny: there is no such model; there are small, large",
        "--pool A@1@CP: the model small cannot summarise passages (@CP)",
        "--pool PK: the model small cannot write a document of its own (PK)",
        "--pool B@1: expression: there is no source 'B'",
    ]


def test_a_search_for_which_a_document_would_be_written_waits_until_nothing_else_is_wrong(
    planned: Callable[..., EnsemblePlan], mesh: FakeClient
) -> None:
    pool = "PK&A@1,A@1"
    check(planned(*GOOD, pool=pool, models=("large", "none")), mesh)  # type: ignore[arg-type]
    assert mesh.probed == ["A@1"]
    check(planned(*GOOD, pool=pool, models=("large",)), mesh)  # type: ignore[arg-type]
    assert mesh.probed == ["A@1", "A@1", "PK&A@1"]


def test_a_mesh_that_is_away_is_no_problem_of_the_study(
    planned: Callable[..., EnsemblePlan], mesh: FakeClient
) -> None:
    mesh.fails = MeshError(grpc.StatusCode.UNAVAILABLE, "UNREACHABLE", "away")
    with pytest.raises(MeshError, match="away"):
        check(planned(*GOOD), mesh)  # type: ignore[arg-type]


def test_collections_whose_vectors_are_still_made_are_not_asked(
    planned: Callable[..., EnsemblePlan], mesh: FakeClient
) -> None:
    mesh.embedded = 0.25
    found, _ = check(planned(*GOOD), mesh)  # type: ignore[arg-type]
    assert found.problems == [
        "collection 'wiki': 25.0% of its passages have vectors; results change until all have; "
        "`evenmesh collections` shows progress"
    ]


def test_names_whose_records_would_be_mixed_are_refused(
    planned: Callable[..., EnsemblePlan], mesh: FakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = [GeneratorModel(name, "float32", ("retrieval_free",)) for name in ("a/b", "a_b")]
    monkeypatch.setattr(checks, "models", lambda _: there)
    found, _ = check(planned(*GOOD, models=("a/b", "a_b")), mesh)  # type: ignore[arg-type]
    assert found.problems == ["--model: records of these would share a file: a/b, a_b"]
    monkeypatch.setattr(checks, "models", lambda _: [])
    found, _ = check(planned(*GOOD, models=()), mesh)  # type: ignore[arg-type]
    assert found.problems == ["the mesh's generator has no model"]
