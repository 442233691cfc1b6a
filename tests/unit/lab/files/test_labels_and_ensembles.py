import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from evenmesh_lab.files import FileError, read_attribute, read_ensemble, read_labels


def line(**record: object) -> str:
    return json.dumps(record)


def test_labels_may_name_columns_as_trec_and_beir_do(write):
    path = write(
        "l.jsonl",
        line(query_id="q1", passage_id="a", grade=2, provider="Co-op"),
        line(query_id="q1", doc_id="b", relevance=0, group="old"),
    )

    labels = read_labels(path)
    assert labels.grades == {"q1": {"a": 2.0, "b": 0.0}}
    assert labels.attributes == {"provider": {"a": "Co-op"}, "group": {"b": "old"}}


def test_a_negative_grade_is_not_useful_in_any_format(write):
    path = write(
        "l.jsonl", line(query_id="q1", passage_id="a", grade=-2), line(query_id="q1", doc_id="b", grade=1)
    )
    assert read_labels(path).grades == {"q1": {"a": 0.0, "b": 1.0}}
    assert read_labels(write("l.qrels", "q1 0 a -2", "q1 0 b 1")).grades == read_labels(path).grades
    with pytest.raises(FileError, match="grade"):
        read_labels(write("n.jsonl", '{"query_id": "q1", "passage_id": "a", "grade": -Infinity}'))


def test_a_passage_has_one_provider(write):
    path = write(
        "l.jsonl",
        line(query_id="q1", passage_id="a", grade=1, provider="x"),
        line(query_id="q2", passage_id="a", grade=1, provider="y"),
    )

    with pytest.raises(FileError, match=r"l\.jsonl:2: gives 'a' the provider 'y', which is 'x' above"):
        read_labels(path)


def test_attributes_come_from_passages_as_ingest_takes_them(write):
    path = write(
        "p.jsonl",
        line(id="a", text="t", attributes={"provider": "x"}),
        line(passage_id="b", provider="y"),
        line(id="c"),
    )

    assert read_attribute(path, "provider") == {"a": "x", "b": "y"}
    with pytest.raises(FileError, match="has no passage with the attribute 'colour'"):
        read_attribute(path, "colour")
    with pytest.raises(FileError, match=r":2: repeats the id 'a'"):
        read_attribute(write("p.jsonl", line(id="a"), line(id="a")), "provider")


def test_an_attribute_is_read_from_every_file_of_passages_that_is_ingested(write, tmp_path):
    beir = write(
        "corpus.jsonl",
        line(_id="a", text="t", metadata={"provider": "x", "year": 1999}),
        line(_id="b", text="t", metadata={}),
    )
    assert read_attribute(beir, "provider") == {"a": "x"}
    assert read_attribute(beir, "year") == {"a": "1999"}
    exported = tmp_path / "exported.parquet"
    texts = pa.map_(pa.string(), pa.string())  # as `evenmesh collection export` writes them
    attributes = pa.array([[("provider", "x"), ("group", "g")], []], texts)
    pq.write_table(pa.table({"id": ["a", "b"], "text": ["t", "t"], "attributes": attributes}), exported)
    assert read_attribute(exported, "group") == {"a": "g"}
    flat = tmp_path / "flat.parquet"
    pq.write_table(pa.table({"id": ["a", "b"], "provider": ["x", None]}), flat)
    assert read_attribute(flat, "provider") == {"a": "x"}
    with pytest.raises(FileError, match="has no passage with the attribute 'group'"):
        read_attribute(flat, "group")


def test_an_ensemble_has_an_answer_of_each_retriever(write):
    records = [
        line(query_id="q1", retriever="b", answer="1", references=["1"], question="how many?"),
        line(query_id="q1", retriever="a", answer="2", context="two"),
        line(query_id="q2", retriever="a", answer="3", correct=0.5),
        line(query_id="q2", retriever="b", answer="4"),
    ]

    found = read_ensemble([write("e.jsonl", *records)])
    assert found.retrievers == ("b", "a")
    first, second = found.questions
    assert (first.question, first.references) == ("how many?", ("1",))
    assert [one.answer for one in first.answers] == ["1", "2"]
    assert [one.answer for one in second.answers] == ["4", "3"]
    assert [one.correct for one in second.answers] == [None, 0.5]
    assert read_ensemble([write("e.jsonl", *records)], retrievers=["a"]).retrievers == ("a",)

    with pytest.raises(FileError, match=r"e\.jsonl:3: begins query 'q2', which has no answer with 'b'"):
        read_ensemble([write("e.jsonl", *records[:3])])
    with pytest.raises(FileError, match=r":5: answers query 'q1' with 'a' again, as .*e\.jsonl:2"):
        read_ensemble([write("e.jsonl", *records, records[1])])
    with pytest.raises(FileError, match="has no retriever 'c'; it has: b, a"):
        read_ensemble([write("e.jsonl", *records)], retrievers=["c"])


def test_a_retriever_is_read_once(tmp_path):
    path = tmp_path / "e.jsonl"
    path.write_text('{"query_id": "q", "retriever": "a", "answer": "x"}\n')
    with pytest.raises(FileError, match="with the retriever 'a' twice: name it once"):
        read_ensemble([path], retrievers=["a", "a"])
