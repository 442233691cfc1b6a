import gzip
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from evenmesh_lab.files import FileError, read_audits


def line(**record: object) -> str:
    return json.dumps(record)


def test_records_of_a_query_gather_by_system_and_alpha(write):
    path = write(
        "a.jsonl",
        line(query_id="q1", system="x", alpha=1, sample=0, ranking=["a", "b"], utility=0.5),
        line(
            query_id="q1", system="x", alpha=1, sample=1, ranking=["b", "a"], answer="yes", log_probability=-1
        ),
        line(query_id="q1", system="x", ranking=["a", "b"], references=["yes", "yeah"]),
        line(query_id="q2", ranking=["c"]),
    )

    first, second = read_audits([path])
    assert [(one.system, one.alpha) for one in first.samplings] == [("x", 1.0), ("x", None)]
    assert first.samplings[0].rankings == [("a", "b"), ("b", "a")]
    assert first.samplings[0].utilities == [0.5, None]
    assert first.samplings[0].answers == [None, "yes"]
    assert first.samplings[0].log_probabilities == [None, -1.0]
    assert first.references == ("yes", "yeah")
    assert (first.line, second.line, second.query_id) == (1, 4, "q2")


def test_scattered_queries_and_several_files_give_the_same_as_grouped_ones(write):
    records = [line(query_id=f"q{q}", sample=s, ranking=[f"d{q}{s}"]) for q in range(3) for s in range(2)]
    grouped = write("grouped.jsonl", *records)
    scattered = write("scattered.jsonl.gz", *records[::2], *records[1::2])
    parts = [write("one.jsonl", *records[:3]), write("two.jsonl", *records[3:])]

    wanted = [(one.query_id, one.samplings) for one in read_audits([grouped])]
    assert [(one.query_id, one.samplings) for one in read_audits([scattered])] == wanted
    assert [(one.query_id, one.samplings) for one in read_audits(parts)] == wanted


def test_an_id_that_is_written_in_two_ways_is_one_query(write):
    other = line(query_id="q1", sample=1, ranking=["a"]).replace('"q1"', '"q\\u0031"')
    assert "u0031" in other
    path = write(
        "a.jsonl", line(query_id="q1", sample=0, ranking=["a"]), line(query_id="q2", ranking=["a"]), other
    )
    assert [(one.query_id, len(one.samplings[0].rankings)) for one in read_audits([path])] == [
        ("q1", 2),
        ("q2", 1),
    ]


def test_a_grouped_file_is_read_query_by_query(write):
    path = write("a.jsonl", line(query_id="q1", ranking=["a"]), line(query_id="q2", ranking=["a"]), "{")

    queries = read_audits([path])
    with pytest.raises(FileError, match=r"a\.jsonl:3: is not JSON"):  # looked through before: not grouped
        next(queries)

    path = write("a.jsonl", *(line(query_id=f"q{n}", ranking=["a"]) for n in range(3)), line(query_id="q9"))
    queries = read_audits([path])
    assert next(queries).query_id == "q0"
    with pytest.raises(FileError, match=r"a\.jsonl:4: has no 'ranking'"):
        list(queries)


def test_parquet_has_the_same_columns(tmp_path):
    path = tmp_path / "a.parquet"
    columns = {
        "query_id": ["q1", "q1"],
        "alpha": [None, 2.0],
        "ranking": [["a", "b"], ["b", "a"]],
        "answer": ["x", None],
    }
    pq.write_table(pa.table(columns), path)

    (query,) = read_audits([path])
    assert [(one.alpha, one.rankings) for one in query.samplings] == [
        (None, [("a", "b")]),
        (2.0, [("b", "a")]),
    ]


@pytest.mark.parametrize(
    ("second", "said"),
    [
        (line(query_id="q1", ranking=["a", "b", "a"]), ":2: ranks 'a' twice"),
        (
            line(query_id="q1", sample=1, ranking=["a"]),
            ":2: ranks 1 passages for query 'q1', where its other samples rank 2",
        ),
        (line(query_id="q1", sample=0, ranking=["b", "a"]), ":2: gives sample 0 of query 'q1' again"),
        ('{"query_id": "q1", "ranking": ["a", "b"], "utility": NaN}', ":2: utility: "),
        (line(query_id="q1", ranking=["a", 2]), ":2: ranking.1: input should be a valid string"),
        (
            line(query_id="q1", rankings=["a"]),
            ":2: has no 'ranking'; columns: query_id, ranking, system, alpha",
        ),
        (
            line(query_id="q1", ranking=["a"], score=1),
            ":2: has the unknown column 'score'; columns: query_id",
        ),
        (line(query_id="q1", ranking=[]), ":2: ranking: "),
        (
            line(query_id="q1", ranking=["a"], alpha=-1),
            ":2: alpha: input should be greater than or equal to 0",
        ),
        ("[1]", ":2: must be a JSON object"),
        ('{"query_id": "q1"', ":2: is not JSON: "),
    ],
)
def test_what_is_wrong_with_a_record_is_said_with_its_line(write, second: str, said: str):
    path = write("a.jsonl", line(query_id="q1", sample=0, ranking=["a", "b"]), second)

    with pytest.raises(FileError) as caught:
        list(read_audits([path]))

    assert str(caught.value).startswith(f"{path}{said}")
    assert caught.value.line == 2


def test_a_row_of_parquet_is_named(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"query_id": ["q1", "q2"], "ranking": [["a"], ["b", "b"]]}), path)
    with pytest.raises(FileError, match=r"a\.parquet:2: ranks 'b' twice"):
        list(read_audits([path]))

    pq.write_table(pa.table({"query_id": ["q1", "q2"], "ranking": [["a"], None]}), path)
    with pytest.raises(FileError, match=r"a\.parquet:2: \(row\) has no 'ranking'"):
        list(read_audits([path]))

    path.write_bytes(b"no parquet")
    with pytest.raises(FileError, match="is not readable as Parquet"):
        list(read_audits([path]))


def test_files_that_are_no_text_are_said_to_be_none(write, tmp_path):
    good = line(query_id="q1", ranking=["a"])
    with pytest.raises(FileError, match=r"a\.jsonl:2: is not UTF-8 at byte 2"):
        list(read_audits([write("a.jsonl", content=good.encode() + b"\n{\xff")]))

    whole = gzip.compress("".join(f"{good}\n" for _ in range(2000)).encode())
    cut = tmp_path / "cut.jsonl.gz"
    cut.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(FileError, match=r"cut\.jsonl\.gz:\d+: the gzip data is damaged"):
        list(read_audits([cut]))

    with pytest.raises(FileError, match="No such file"):
        list(read_audits([tmp_path / "none.jsonl"]))
    with pytest.raises(FileError, match="is not a file"):
        list(read_audits([tmp_path]))
    with pytest.raises(FileError, match="is empty"):
        list(read_audits([write("empty.jsonl", content=b"\n \n")]))
