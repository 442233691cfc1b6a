from pathlib import Path

import pytest

from evenmesh_lab.files import FileError, read_audits, read_labels
from evenmesh_lab.files.trec import read_run


def rankings(path: Path) -> list[list[str]]:
    return [ranking.ranking for _, ranking in read_run(path)]


def test_rankings_are_by_score_then_rank_then_id(write):
    path = write(
        "r.trec",
        "q1 Q0 d3 2 1.5 bm25",
        "q1 Q0 d1 1 2.5 bm25",
        "q2 Q0 b 2 1 bm25",  # one score throughout: the ranks are meant
        "q2 Q0 a 3 1 bm25",
        "q2 Q0 c 1 1 bm25",
        "q3 Q0 b 0 1 bm25",  # neither score nor rank tells
        "q3 Q0 a 0 1 bm25",
    )

    assert rankings(path) == [["d1", "d3"], ["c", "b", "a"], ["a", "b"]]


def test_a_tag_may_say_alpha_and_sample(write):
    path = write(
        "r.trec",
        "q1 Q0 a 1 1 dense/alpha=2/sample=0",
        "q1 Q0 b 1 1 dense/alpha=2/sample=1",
        "q1 Q0 b 1 1 some/name",
    )

    (query,) = read_audits([path])
    assert [(one.system, one.alpha, one.rankings) for one in query.samplings] == [
        ("dense", 2.0, [("a",), ("b",)]),
        ("some/name", None, [("b",)]),
    ]


def test_files_of_one_tag_are_samples_of_one_system(write):
    paths = [write(f"{n}.trec.gz", f"q1 Q0 {n} 1 1 bm25") for n in "ab"]

    (query,) = read_audits(paths)
    assert query.samplings[0].rankings == [("a",), ("b",)]


def test_pooled_tags_are_samples_of_one_system(write):
    path = write("r.trec", "q1 Q0 a 1 1 x", "q1 Q0 b 1 1 y/sample=0", "q1 Q0 c 1 1 z/sample=0")

    (query,) = read_audits([path], pool=True)
    assert [(one.system, len(one.rankings)) for one in query.samplings] == [("", 3)]


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["q1 Q0 a 1 1"], ":1: has 5 columns instead of 6: QUERY Q0 PASSAGE RANK SCORE TAG"),
        (["q1 Q0 a 1 1 t", "q1 Q0 b 2 nan t"], ":2: score is 'nan', not a finite number"),
        (["q1 Q0 a 1 high t"], ":1: score is 'high', not a number"),
        (["q1 Q0 a first 1 t"], ":1: rank is 'first', not a whole number"),
        (["q1 Q0 a 1 2 t", "", "q1 Q0 a 2 1 t"], ":3: ranks 'a' again, which line 1 has"),
        (
            ["q1 Q0 a 1 1 t", "q1 Q0 b 2 2 t"],
            ":1: ranks 'a' above that of line 2, but scores it below",
        ),
        (
            ["q1 Q0 a 1 1 t", "q2 Q0 a 1 1 t", "q1 Q0 b 2 0 t"],
            ":3: goes back to query 'q1' of 't', whose lines ended before",
        ),
        (["q1 Q0 a 1 1 t/alpha=101"], ":1: alpha is 101; allowed: 0 to 100"),
        (["q1 Q0 a 1 1 t/alpha=much"], ":1: alpha is 'much', not a number"),
        ([""], ": is empty"),
    ],
)
def test_what_is_wrong_with_a_run_is_said_with_its_line(write, lines: list[str], said: str):
    path = write("r.trec", *lines)

    with pytest.raises(FileError) as caught:
        rankings(path)

    assert str(caught.value) == f"{path}{said}"


def test_qrels_are_read_and_junk_is_not_useful(write):
    labels = read_labels(write("qrels.txt", "q1 0 a 2", "q1 0 b -2", "q2\t0\ta\t0"))

    assert labels.grades == {"q1": {"a": 2.0, "b": 0.0}, "q2": {"a": 0.0}}


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["q1 a 1"], ":1: has 3 columns instead of 4: QUERY ITERATION PASSAGE GRADE"),
        (["q1 0 a 0.5"], ":1: grade is '0.5', not a whole number"),
        (["q1 0 a 1", "q1 0 a 0"], ":2: judges 'a' for query 'q1' again"),
    ],
)
def test_what_is_wrong_with_qrels_is_said_with_its_line(write, lines: list[str], said: str):
    path = write("qrels.txt", *lines)

    with pytest.raises(FileError) as caught:
        read_labels(path)

    assert str(caught.value) == f"{path}{said}"
