"""Data sets by name: local ones of ir_datasets and of Hugging Face's ``datasets``."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from evenmesh.commands import main
from evenmesh_documents import commands
from evenmesh_documents.attribution import Attribution
from evenmesh_documents.data_sets.address import DataSetAddress, is_data_set
from evenmesh_documents.data_sets.opening import DataSetError, opened
from evenmesh_documents.data_sets.questions import fetch
from evenmesh_documents.gathering import Spool, gather
from evenmesh_documents.limits import Limits
from evenmesh_documents.origins.finding import find_all
from evenmesh_documents.origins.found import PathError
from evenmesh_documents.parsing.parsers import Parsers
from evenmesh_documents.splitting import Splitting
from evenmesh_documents.syncing import source_file
from evenmesh_documents.syncing.naming import named
from evenmesh_lab.files import read_labels
from evenmesh_lab.files.queries import read_queries
from evenmesh_lab.files.questions import read_question_set
from tests.support.entry_points import bring
from tests.support.scripted import ScriptedMesh

ir_datasets = pytest.importorskip("ir_datasets", reason="needs evenmesh-documents[data-sets]")

Output = pytest.CaptureFixture[str]


class Doc(NamedTuple):
    doc_id: str
    title: str
    body: str
    url: str
    year: int
    sentences: tuple[str, ...] = ()

    def default_text(self) -> str:
        return f"{self.title} {self.body}"


class Query(NamedTuple):
    query_id: str
    text: str
    answers: tuple[str, ...]


DOCS = [
    Doc("d1", "Chains", "Oil them.", "https://acme.example/a", 2020, ("Oil them.",)),
    Doc("d2", "Brakes", "Bleed them.", "https://www.zeta.example/b", 2021),
    Doc("d3", "", "", "https://zeta.example/c", 2021),
]
QUERIES = [
    Query("q1", "How often should I oil a chain?", ("every 200 km", "every 200 km")),
    Query("q2", "Who bleeds brakes?", ()),
    Query("q3", " ", ()),
]
QRELS = ["q1 0 d1 2", "q1 1 d1 1", "q1 0 d2 0", "q2 0 d2 1", "q2 0 d1 -1", "q9 0 d1 1"]


@pytest.fixture
def registered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A data set of ir_datasets, registered as its own are."""
    from ir_datasets import formats, util
    from ir_datasets.datasets.base import Dataset

    class Docs(formats.BaseDocs):
        def docs_iter(self) -> Iterator[Doc]:
            return iter(DOCS)

    class Queries(formats.BaseQueries):
        def queries_iter(self) -> Iterator[Query]:
            return iter(QUERIES)

    (tmp_path / "qrels").write_text("\n".join(QRELS) + "\n")
    qrels = formats.TrecQrels(util.LocalDownload(tmp_path / "qrels"), {})
    monkeypatch.setattr(ir_datasets.registry, "_registered", {})
    ir_datasets.registry.register("bikes/test", Dataset(Docs(), Queries(), qrels))
    return "ir_datasets:bikes/test"


@pytest.fixture
def parquet(tmp_path: Path) -> Path:
    """A folder that ``datasets`` reads: BEIR's columns, and one more."""
    pytest.importorskip("datasets", reason="needs evenmesh-documents[data-sets]")
    import pyarrow
    import pyarrow.parquet

    arrow: Any = pyarrow
    for name, rows in {
        "corpus": [
            {"_id": one.doc_id, "title": one.title, "text": one.body, "provider": one.url[8:12]}
            for one in DOCS
        ],
        "queries": [{"_id": one.query_id, "text": one.text, "answers": list(one.answers)} for one in QUERIES],
        "qrels": [{"query-id": "q1", "corpus-id": "d1", "score": 1.0}],
        "graded": [{"query-id": "q1", "corpus-id": f"d{at}", "score": at / 2 - 1} for at in range(5)],
        "ungraded": [{"query-id": "q1", "corpus-id": "d1", "score": float("nan")}],
    }.items():
        (tmp_path / "hf" / name).mkdir(parents=True)
        path = tmp_path / "hf" / name / "train.parquet"
        pyarrow.parquet.write_table(arrow.Table.from_pylist(rows), path)
    return tmp_path / "hf"


@pytest.fixture
def mesh(at_home: ScriptedMesh, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ScriptedMesh:
    """A scripted mesh that the command finds, with this distribution alone."""
    bring(monkeypatch, lambda: commands.commands)
    monkeypatch.setenv("EVENMESH_HOME", str(tmp_path / "home"))
    return at_home


def test_a_data_set_is_ingested_with_its_ids(mesh: ScriptedMesh, registered: str, capsys: Output) -> None:
    assert main(["ingest", registered, "-c", "bikes"]) == 0
    said = capsys.readouterr().out

    first, second = mesh.collections.kept["bikes"]
    assert (first.id, first.title, first.text) == ("d1", "Chains", "Oil them.")
    assert dict(first.attributes) == {
        "provider": "acme.example",
        "url": "https://acme.example/a",
        "year": "2020",
    }
    assert second.attributes["provider"] == "zeta.example"
    assert "1 documents are left out, such as 'd3': text is empty or too long" in said
    assert main(["ingest", registered, "--dry-run", "--provider", r"pattern:d(\d)", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["providers"] == {"1": 1, "2": 1}


def test_a_source_of_a_data_set_keeps_its_address(
    mesh: ScriptedMesh, registered: str, tmp_path: Path
) -> None:
    assert main(["sources", "add", "bench", registered, "-c", "bikes"]) == 0
    made = source_file.load(tmp_path / "home" / "sources.yaml")["bench"]
    assert made.paths == (registered,)
    with Spool() as spool, Parsers(1, Limits()) as parsers:
        gathered = gather(
            list(find_all(made.paths)),
            parsers,
            spool,
            splitting=Splitting(),
            attribution=Attribution(),
            named=lambda address, own: named("bench", address, own),
        )
        assert [one.id for one in spool] == [f"bench:{registered}#d1", f"bench:{registered}#d2"]
    assert (gathered.files, gathered.providers) == (1, {"acme.example": 1, "zeta.example": 1})


def test_local_parquet_of_hugging_face_is_ingested(mesh: ScriptedMesh, parquet: Path, capsys: Output) -> None:
    assert main(["ingest", f"hf:{parquet}/corpus", "-c", "bikes"]) == 0
    assert [(one.id, one.attributes["provider"]) for one in mesh.collections.kept["bikes"]] == [
        ("d1", "acme"),
        ("d2", "www."),
    ]
    assert main(["ingest", f"hf:{parquet}/corpus?text=provider&id=title", "--dry-run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["passages"] == 2
    assert main(["ingest", f"hf:{parquet}/qrels", "--dry-run"]) == 0
    assert "has no column for text: add ?text= and one of query-id" in capsys.readouterr().out
    assert main(["ingest", f"hf:{parquet}/corpus?text=body", "--dry-run"]) == 0
    assert "has no column 'body'; there are _id, title, text, provider" in capsys.readouterr().out


def test_questions_become_the_files_of_studies(registered: str, tmp_path: Path) -> None:
    done = fetch(registered, tmp_path / "out", min_grade=2)

    assert (done.questions, done.answered, done.judged, done.judgements, done.left_out) == (2, 1, 2, 4, 1)
    queries = read_queries(tmp_path / "out" / "queries.jsonl")
    assert not queries.problems
    assert [(one.query_id, one.references) for one in queries.queries] == [
        ("q1", ("every 200 km",)),
        ("q2", ()),
    ]
    questions = read_question_set(str(tmp_path / "out" / "questions.jsonl"))
    assert not questions.problems
    assert [one.gold for one in questions.questions] == [("d1",), ()]
    labels = read_labels(tmp_path / "out" / "labels.jsonl")
    assert labels.grades == {"q1": {"d1": 2, "d2": 0}, "q2": {"d2": 1, "d1": 0}}


def test_questions_of_hugging_face_have_their_judgements_elsewhere(parquet: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = fetch(f"hf:{parquet}/queries", out, qrels=f"hf:{parquet}/qrels")
    assert (done.questions, done.answered, done.judgements) == (2, 1, 1)
    assert read_labels(out / "labels.jsonl").grades == {"q1": {"d1": 1}}
    done = fetch(f"hf:{parquet}/queries", out)
    assert (done.judged, sorted(one.name for one in out.iterdir())) == (
        0,
        ["queries.jsonl", "questions.jsonl"],
    )


def test_grades_between_whole_numbers_are_kept_and_what_is_no_grade_is_refused(
    parquet: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    fetch(f"hf:{parquet}/queries", out, qrels=f"hf:{parquet}/graded")
    grades = {"d0": 0.0, "d1": 0.0, "d2": 0.0, "d3": 0.5, "d4": 1.0}
    assert read_labels(out / "labels.jsonl").grades == {"q1": grades}
    assert json.loads((out / "questions.jsonl").read_text().splitlines()[0])["gold_passage_ids"] == ["d4"]
    with pytest.raises(DataSetError, match="holds nan, not a grade"):
        fetch(f"hf:{parquet}/queries", out, qrels=f"hf:{parquet}/ungraded")


def test_a_split_that_is_not_there_is_named_with_those_that_are(parquet: Path, tmp_path: Path) -> None:
    with pytest.raises(DataSetError, match=r"cannot be opened \(Bad split: nope\..*\['train'\]\)$"):
        fetch(f"hf:{parquet}/queries?split=nope", tmp_path / "out")


def test_the_command_says_what_it_wrote(
    mesh: ScriptedMesh, registered: str, tmp_path: Path, capsys: Output
) -> None:
    assert main(["fetch-questions", registered, "-o", str(tmp_path / "out")]) == 0
    said = capsys.readouterr().out
    assert "2 questions in" in said
    assert "1 with answers, 2 with judgements; 1 are empty or too long and left out" in said
    assert main(["fetch-questions", "ir_datasets:nothing", "-o", str(tmp_path / "out")]) == 1
    assert "ir_datasets:nothing: is not known to ir_datasets" in capsys.readouterr().err


def test_a_data_set_is_bounded(registered: str) -> None:
    (found,) = find_all([registered])
    assert found.records is not None
    assert len(list(found.records(3))) == 3
    with pytest.raises(ValueError, match="has more than 2 docs"):
        list(found.records(2))


def test_what_cannot_be_reached_is_said(
    mesh: ScriptedMesh, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    from ir_datasets import formats, util
    from ir_datasets.datasets.base import Dataset

    monkeypatch.setenv("IR_DATASETS_DL_TRIES", "1")
    away = util.Cache(util.RequestsDownload("http://127.0.0.1:9/docs.tsv"), tmp_path / "docs.tsv")
    monkeypatch.setattr(ir_datasets.registry, "_registered", {})
    ir_datasets.registry.register("away", Dataset(formats.TsvDocs(away)))
    assert main(["ingest", "ir_datasets:away", "-c", "bikes"]) == 1
    assert "cannot be read (ConnectionError" in capsys.readouterr().out
    assert "bikes" not in mesh.collections.kept

    pytest.importorskip("datasets")
    import datasets.config
    import huggingface_hub.constants

    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(
        PathError, match=r"hf:no/such: cannot be opened \(ConnectionError.*named by its folder"
    ):
        list(find_all(["hf:no/such"]))


@pytest.mark.parametrize(("kind", "package"), [("ir_datasets", "ir_datasets"), ("hf", "datasets")])
def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, kind: str, package: str) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(DataSetError, match=rf"needs {package}, .*: pip install {package}"):
        opened(DataSetAddress.parse(f"{kind}:x"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hf:", "must be ir_datasets:NAME or hf:NAME"),
        ("hf://x/y", "must be ir_datasets:NAME or hf:NAME"),
        ("ir_datasets:x?split=a", "takes no options"),
        ("hf:x?colour=red", "has no option 'colour'; there are config, split"),
        ("hf:x?split", "options must be NAME=VALUE"),
    ],
)
def test_wrong_addresses_are_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DataSetAddress.parse(text)


def test_file_systems_and_files_are_no_data_sets() -> None:
    assert [is_data_set(one) for one in ("hf:a/b", "hf://a/b", "ir_datasets:a", "a.md", "C:/x")] == [
        *(True, False, True, False, False)
    ]
    parsed = DataSetAddress.parse("hf:org/name?config=corpus&split=test&text=body")
    assert (parsed.name, parsed.options, parsed.columns) == (
        "org/name",
        {"config": "corpus", "split": "test"},
        {"text": "body"},
    )
