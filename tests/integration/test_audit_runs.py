"""`evenmesh audit` over the real mesh: exact, refused in time, and the same whatever was killed meanwhile."""

import json
import os
import signal
import subprocess
import sys
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import numpy as np
import pytest

from evenmesh import AuditReport, AuditSample, AuditSettled, Client
from evenmesh.local_mesh import read_running
from evenmesh_core.exposure import exposure_metrics
from evenmesh_core.plackett_luce import log_weights, sample_rankings
from evenmesh_core.text_metrics import token_f1
from evenmesh_lab.files import read_audits
from evenmesh_studies import demo
from tests.integration.conftest import DEMO, RunningMesh
from tests.support.command_line import kill_at, run_here
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.mesh, pytest.mark.timeout(600)]

QUESTIONS = demo.questions()[:2]
OPTIONS = ("-c", DEMO, "-r", "bm25", "-r", "dense", "-n", "3", "-k", "1", "--alpha", "1,4", "--oracle", "2")
TIMEOUT_S = 600.0


def questions(folder: Path) -> tuple[Path, Path]:
    """A few questions of the demo, and their labels."""
    queries, labels = folder / "queries.jsonl", folder / "labels.qrels"
    queries.write_text(
        "".join(
            json.dumps({"query_id": one.id, "question": one.question, "references": list(one.answers)}) + "\n"
            for one in QUESTIONS
        )
    )
    labels.write_text(
        "".join(f"{one.id} 0 {passage} 1\n" for one in QUESTIONS for passage in one.useful_passage_ids)
    )
    return queries, labels


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """Questions and labels of a test."""
    return questions(tmp_path)


def arguments(files: tuple[Path, Path], out: Path, options: tuple[str, ...]) -> tuple[str, ...]:
    queries, labels = files
    return ("audit", str(queries), "-l", str(labels), "-o", str(out), *OPTIONS, *options)


def audit(
    mesh: RunningMesh,
    files: tuple[Path, Path],
    out: Path,
    *options: str,
    status: int = 0,
    figures: bool = False,
) -> str:
    """What the command says in this process."""
    ended = run_here(mesh.home, *arguments(files, out, options), figures=figures)
    assert ended.status == status, ended
    return ended.out + ended.err


def written(out: Path) -> dict[str, bytes]:
    """Everything a run keeps, but the report."""
    return {path.name: path.read_bytes() for path in sorted(out.iterdir()) if path.is_file()}


@pytest.fixture(scope="module")
def undisturbed(mesh: RunningMesh, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, bytes], Path]:
    """What a run writes that nobody disturbs, and where."""
    folder = tmp_path_factory.mktemp("undisturbed")
    done = subprocess.run(
        [sys.executable, "-m", "evenmesh", *arguments(questions(folder), folder / "out", ())],
        env=os.environ | {"EVENMESH_HOME": str(mesh.home)},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return written(folder / "out"), folder / "out"


def test_an_audit_of_the_real_mesh_is_an_offline_loop(client: Client) -> None:
    one = QUESTIONS[0]
    events = list(
        client.audit(
            one.question,
            alphas=[1, 4],
            oracle=2,
            samples=3,
            k=1,
            seed=5,
            collection=DEMO,
            retriever="bm25",
            reranker="none",
            useful=one.useful_passage_ids,
            references=one.answers,
        )
    )
    (settled,) = [event for event in events if isinstance(event, AuditSettled)]
    full = client.answer(
        one.question,
        collection=DEMO,
        retriever="bm25",
        reranker="none",
        k=1,
        alpha=1,
        samples=1,
        num_answers=0,
    )
    assert full.retrieved is not None
    pool = [passage.id for passage in full.retrieved.passages]
    assert list(settled.passage_ids) == pool
    useful = [name in one.useful_passage_ids for name in pool]
    useful += [True] * (len(one.useful_passage_ids) - sum(useful))

    samples = [event for event in events if isinstance(event, AuditSample)]
    reports = {
        event.alpha: event for event in events if isinstance(event, AuditReport) and event.policy == "sampled"
    }
    u_max = max(sample.utility or 0.0 for sample in samples)
    for alpha in (1.0, 4.0):
        rows = sample_rankings(
            log_weights(full.retrieved.scores, alpha),
            num_rankings=3,
            k=1,
            rng=np.random.default_rng([5, zlib.crc32(one.question.encode())]),
        )
        mine = [sample for sample in samples if sample.alpha == alpha]
        assert [list(sample.passage_ids) for sample in mine] == [[pool[item] for item in row] for row in rows]
        values = [token_f1(sample.answer or "", one.answers) for sample in mine]
        assert [sample.utility for sample in mine] == values
        metrics, report = exposure_metrics(rows, useful, k=1), reports[alpha]
        assert (report.ee_d, report.ee_r) == (metrics.ee_d, metrics.ee_r)
        assert report.expected_utility == pytest.approx(sum(values) / 3)
        assert report.u_max == u_max
    # The same question, seed and dial in an ask shows the same contexts.
    sampled = client.answer(
        one.question,
        collection=DEMO,
        retriever="bm25",
        reranker="none",
        k=1,
        alpha=4,
        samples=3,
        seed=5,
        num_answers=0,
    )
    assert sampled.ranked is not None
    assert [[pool[index] for index in context] for context in sampled.ranked.contexts] == [
        list(sample.passage_ids) for sample in samples if sample.alpha == 4
    ]


def test_records_are_whole_and_reports_read_them(undisturbed: tuple[dict[str, bytes], Path]) -> None:
    files_, out = undisturbed
    assert set(files_) == {"audit.journal", "evenmesh-pointer.jsonl"}
    queries = list(read_audits([out / "evenmesh-pointer.jsonl"]))
    assert [query.query_id for query in queries] == [one.id for one in QUESTIONS]
    for query, one in zip(queries, QUESTIONS, strict=True):
        assert query.references == one.answers
        assert {(level.system, level.alpha): len(level.rankings) for level in query.samplings} == {
            **{(system, None): 1 for system in ("bm25", "dense")},
            **{(system, alpha): 3 for system in ("bm25", "dense") for alpha in (1.0, 4.0)},
            **{(f"{system}/oracle", None): 2 for system in ("bm25", "dense")},
        }
        for level in query.samplings:
            assert None not in level.answers
            assert None not in level.utilities
    report = out / "report"
    page = (report / "report.html").read_text()
    assert "evenmesh-pointer" in page
    assert "seed 0" in page
    assert "questions is in the training of evenmesh-pointer" in page  # the demo's are our own
    names = {path.name for path in report.iterdir()}
    assert {
        "overlap.csv",
        "evenmesh-pointer-exposure.csv",
        "evenmesh-pointer-utility-summary.csv",
        "evenmesh-pointer-utility-disparity-utility.svg",
        "evenmesh-pointer-exposure-disparity-quality.png",
    } <= names


def test_kills_change_nothing(
    mesh: RunningMesh, files: tuple[Path, Path], undisturbed: tuple[dict[str, bytes], Path], tmp_path: Path
) -> None:
    random, out = Random(1), tmp_path / "out"
    for goal in (1, 2, 4):
        kill_at(
            mesh.home,
            out / "audit.journal",
            goal,
            *arguments(files, out, ()),
            later_s=random.uniform(0, 1.0),
        )
    audit(mesh, files, out)
    assert written(out) == undisturbed[0]


def test_a_killed_generator_changes_nothing(
    mesh: RunningMesh, files: tuple[Path, Path], undisturbed: tuple[dict[str, bytes], Path], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    state = read_running(mesh.home)
    assert state is not None
    pid = state.services["generator"].pid
    assert pid is not None

    def kill_meanwhile() -> None:
        journal = out / "audit.journal"
        wait_until(lambda: journal.exists() and len(journal.read_bytes().splitlines()) >= 2, TIMEOUT_S)
        os.kill(pid, signal.SIGKILL)

    with ThreadPoolExecutor(1) as pool:
        killed = pool.submit(kill_meanwhile)
        said = audit(mesh, files, out)
        killed.result()
    assert "asking again" in said
    assert written(out) == undisturbed[0]


def test_shards_make_the_whole(
    mesh: RunningMesh, files: tuple[Path, Path], undisturbed: tuple[dict[str, bytes], Path], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    assert "other shards are missing" in audit(mesh, files, out, "--shard", "0/2")
    audit(mesh, files, out, "--shard", "1/2")
    lines = [
        line
        for place in range(2)
        for line in (out / f"evenmesh-pointer-{place}-of-2.jsonl").read_bytes().splitlines()
    ]
    assert sorted(lines) == sorted(undisturbed[0]["evenmesh-pointer.jsonl"].splitlines())
    whole = (undisturbed[1] / "report" / "evenmesh-pointer-utility-summary.csv").read_text()
    assert (out / "report" / "evenmesh-pointer-utility-summary.csv").read_text().splitlines()[
        0
    ] == whole.splitlines()[0]


def test_all_problems_are_reported_before_anything_is_generated(
    mesh: RunningMesh, client: Client, tmp_path: Path
) -> None:
    queries, labels, out = tmp_path / "queries.jsonl", tmp_path / "labels.qrels", tmp_path / "out"
    queries.write_text(
        '{"query_id": "q1", "question": "Who?", "references": ["I"]}\n'
        '{"query_id": "q1", "question": "Who again?", "references": ["I"]}\n'
        '{"query_id": "q2", "question": "What?"}\n'
        "nonsense\n"
    )
    labels.write_text("q1 0 bike-0001 1\n")
    given = queries, labels
    said = audit(mesh, given, out, "--model", "none-such", "--alpha", "1,1,200", status=2)
    for words in (
        "queries.jsonl:2: repeats the query 'q1' of line 1",
        "queries.jsonl:4: is not JSON",
        "labels.qrels has no labels for these queries: q2",
        "no references to score answers against: q2",
        "--alpha: given twice: 1",
        "--alpha 200: allowed: 0 to 100",
        "--model none-such: there is no such model",
    ):
        assert words in said, said
    assert not out.exists()

    queries.write_text('{"query_id": "q1", "question": "Who?", "references": ["I"]}\n')
    assert "none-such" in audit(mesh, given, out, "-r", "none-such", status=2)

    labels.write_text("q1 0 bike-0001 1\nq1 0 nowhere-1 1\nq1 0 nowhere-2 0\n")
    said = audit(mesh, given, out, status=2)
    assert "judges passages that the collection 'demo' does not have: nowhere-1, nowhere-2" in said
    assert not out.exists()


def test_exposure_alone_needs_no_answers(mesh: RunningMesh, files: tuple[Path, Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    said = audit(mesh, files, out, "--exposure-only", figures=True)
    (records,) = [path for path in out.iterdir() if path.suffix == ".jsonl"]
    assert '"answer"' not in records.read_text()
    assert "Expected exposure in the first 1" in said
    assert "Expected utility" not in said


def test_sampling_stops_at_a_width(mesh: RunningMesh, files: tuple[Path, Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    audit(mesh, files, out, "--alpha", "100", "-n", "200", "--until-width", "0.3")
    (records,) = [path for path in out.iterdir() if path.suffix == ".jsonl"]
    for query in read_audits([records]):
        for level in query.samplings:
            if level.alpha is not None:
                # At α = 100 the same context comes each time: its utility is known soon.
                assert 10 < len(level.rankings) < 200
