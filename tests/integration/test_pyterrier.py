"""PyTerrier over the real mesh: its experiments say what we measure."""

import gzip
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from evenmesh import Agent, Client, FirstStage, GradedRanking, Passage, RankingQuality
from evenmesh.wire.errors import InvalidField, NotFound
from evenmesh_studies import demo
from tests.integration.conftest import DEMO, RunningMesh

pytestmark = [
    pytest.mark.mesh,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore:There are shared pipeline components"),
]
pytest.importorskip("pyterrier", reason="PyTerrier is not installed: evenmesh-studies[pyterrier]")

import pandas as pd  # noqa: E402
import pyterrier as pt  # noqa: E402
from pyterrier.measures import RR, P, R, nDCG  # noqa: E402

from evenmesh_studies.pyterrier import MeshReranker, MeshRetriever, repeated  # noqa: E402

CRANFIELD = Path(os.environ.get("EVENMESH_SHARED_DATA", "/nowhere")) / "cranfield"
COLLECTION = "pyterrier-cranfield"
QUERIES = 6
BIKES = pd.DataFrame([{"qid": one.id, "query": one.question} for one in demo.questions()[:3]])


def rows(name: str) -> list[dict[str, object]]:
    with gzip.open(CRANFIELD / name, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


@pytest.fixture(scope="module")
def cranfield(mesh: RunningMesh) -> Iterator[tuple[pd.DataFrame, pd.DataFrame]]:
    """Topics and judgements of the first queries, whose judged documents are a collection of the mesh."""
    if not CRANFIELD.is_dir():
        pytest.skip("cranfield is not among the shared data sets: set EVENMESH_SHARED_DATA")
    topics = pd.DataFrame(rows("queries.jsonl.gz")[:QUERIES]).rename(columns={"id": "qid"})[["qid", "query"]]
    qrels = pd.DataFrame(rows("qrels.jsonl.gz")).rename(
        columns={"query_id": "qid", "doc_id": "docno", "relevance": "label"}
    )
    qrels = qrels[qrels["qid"].isin(topics["qid"])].reset_index(drop=True)
    judged = set(qrels["docno"])
    with Client(mesh.addresses) as client:
        client.ingest(
            [
                Passage(str(one["id"]), text=str(one["text"]), title=str(one["title"]))
                for one in rows("documents.jsonl.gz")
                if one["id"] in judged and one["text"]
            ],
            COLLECTION,
        )
        yield topics, qrels
        client.delete_collection(COLLECTION)


def ours(client: Client, rankings: dict[str, list[str]], qrels: pd.DataFrame, k: int) -> list[RankingQuality]:
    """What the mesh measures of rankings, in the order of the queries."""
    grades: dict[str, dict[str, int]] = {qid: {} for qid in rankings}
    for one in qrels.itertuples():
        grades[one.qid][one.docno] = int(one.label)
    graded = [GradedRanking(qid, ranking, grades[qid]) for qid, ranking in rankings.items()]
    return list(client.evaluate_rankings(graded, k=k).queries)


def test_an_experiment_equals_our_own_numbers(
    client: Client, cranfield: tuple[pd.DataFrame, pd.DataFrame]
) -> None:
    topics, qrels = cranfield
    lexical = MeshRetriever(client, COLLECTION, retriever="bm25")
    found = pt.Experiment(
        [lexical, lexical % 3 >> MeshReranker(client, "cross-encoder")],
        topics,
        qrels,
        [nDCG @ 10, RR @ 10, P @ 10, R @ 100, nDCG @ 3],
        names=["bm25", "reranked"],
        perquery=True,
    )
    values = {(one.name, one.qid, one.measure): one.value for one in found.itertuples()}

    first, reranked = {}, {}
    for one in topics.itertuples():
        retrieved = client.retrieve(one.query, collection=COLLECTION, retriever="bm25", k=100)
        first[one.qid] = [passage.id for passage in retrieved.passages]
        scores = FirstStage(retrieved.scores[:3])
        best = client.rerank(
            one.query, retrieved.passages[:3], reranker="cross-encoder", first_stage=scores
        ).order
        reranked[one.qid] = [first[one.qid][place] for place in best]
    for at_ten, at_hundred in zip(
        ours(client, first, qrels, 10), ours(client, first, qrels, 100), strict=True
    ):
        expected = [at_ten.ndcg, at_ten.reciprocal_rank, at_ten.precision, at_hundred.recall]
        measures = ["nDCG@10", "RR@10", "P@10", "R@100"]
        measured = [values["bm25", at_ten.query_id, measure] for measure in measures]
        assert measured == pytest.approx(expected, abs=1e-6)
    for quality in ours(client, reranked, qrels, 3):
        assert values["reranked", quality.query_id, "nDCG@3"] == pytest.approx(quality.ndcg, abs=1e-6)
    assert reranked != {qid: ranking[:3] for qid, ranking in first.items()}


def test_results_have_what_pipelines_read(client: Client) -> None:
    topics = BIKES.assign(query_0="as typed")
    retriever = MeshRetriever(client, DEMO, num_results=4, attributes=["provider", "colour"], in_flight=2)
    found = retriever(topics)

    assert list(found.columns) == [
        *("qid", "query", "query_0", "docno", "score", "rank", "title", "text", "provider", "colour")
    ]
    assert found.groupby("qid", sort=False)["rank"].apply(list).to_dict() == {
        qid: [0, 1, 2, 3] for qid in BIKES["qid"]
    }
    expected = client.retrieve(BIKES["query"][1], collection=DEMO, k=4).passages
    second = found[found["qid"] == BIKES["qid"][1]]
    assert list(second["docno"]) == [one.id for one in expected]
    assert list(second["text"]) == [one.text for one in expected]
    assert list(second["provider"]) == [one.attributes["provider"] for one in expected]
    assert set(found["colour"]) == {""}
    assert retriever.search(BIKES["query"][1])["docno"].tolist() == list(second["docno"])
    empty = (retriever >> MeshReranker(client))(topics.iloc[:0])
    assert (len(empty), set(empty.columns)) == (0, set(found.columns))


def test_a_cut_pipeline_asks_for_less_of_the_same_pool(client: Client) -> None:
    hybrid = MeshRetriever(client, DEMO, retriever="hybrid", num_results=20)
    cut = (hybrid % 3).compile()

    assert isinstance(cut, MeshRetriever)
    assert cut.num_results == 3
    assert cut(BIKES)["docno"].tolist() == hybrid(BIKES).query("rank < 3")["docno"].tolist()
    assert not isinstance((MeshRetriever(client, DEMO, alpha=1.0) % 3).compile(), MeshRetriever)


def test_repeated_topics_are_sampled_rankings(client: Client) -> None:
    fair = MeshRetriever(client, DEMO, retriever="bm25", num_results=5, alpha=1.0, seed=3)
    topics = repeated(BIKES, 8)
    found = fair(topics)

    drawn = client.retrieve(
        BIKES["query"][0], collection=DEMO, retriever="bm25", k=5, depth=100, alpha=1.0, samples=8, seed=3
    )
    for sample, ranking in enumerate(drawn.rankings):
        mine = found[found["qid"] == f"{BIKES['qid'][0]}/sample={sample}"]
        assert list(mine["docno"]) == [drawn.passages[place].id for place in ranking]
    assert len({tuple(one) for _, one in found.groupby("qid")["docno"]}) > len(BIKES)

    qrels = pd.DataFrame(
        [
            {"qid": one.id, "docno": passage, "label": 1}
            for one in demo.questions()[: len(BIKES)]
            for passage in one.useful_passage_ids
        ]
    )
    measured = pt.Experiment([fair], topics, repeated(qrels, 8), [nDCG @ 5])["nDCG@5"][0]
    rankings = {qid: list(one) for qid, one in found.groupby("qid", sort=False)["docno"]}
    each = [one.ndcg for one in ours(client, rankings, repeated(qrels, 8), 5)]
    assert measured == pytest.approx(sum(one or 0 for one in each) / len(each), abs=1e-6)
    with pytest.raises(ValueError, match="allowed: 1 to 1,000"):
        repeated(BIKES, 0)


def test_errors_name_the_query(client: Client) -> None:
    with pytest.raises(NotFound) as lost:
        MeshRetriever(client, "no-such-collection")(BIKES)
    assert lost.value.__notes__ == [f"query {BIKES['qid'][0]}"]
    results = MeshRetriever(client, DEMO, num_results=2)(BIKES)
    with pytest.raises(InvalidField):
        MeshReranker(client, fusion=11.0)(results)
    with pytest.raises(pt.validate.InputValidationError, match="text"):
        MeshReranker(client)(results.drop(columns="text"))
    with pytest.raises(ValueError, match="put % 1000 before the reranker"):
        MeshReranker(client)(pd.concat([results] * 300).assign(qid="1"))
    with pytest.raises(TypeError, match="no option samples"):
        MeshRetriever(client, DEMO, samples=3)  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="num_results is 1001"):
        MeshRetriever(client, DEMO, num_results=1_001)


def test_an_agent_is_named_and_fusion_can_be_left_out(client: Client) -> None:
    results = MeshRetriever(client, DEMO, retriever="bm25", num_results=3)(BIKES.iloc[:1])
    passages = [Passage(one.docno, text=one.text, title=one.title) for one in results.itertuples()]
    agent = Agent("qa", "reader")

    alone = MeshReranker(client, "cross-encoder", agent=agent, fusion=0)(results)
    expected = client.rerank(BIKES["query"][0], passages, reranker="cross-encoder", agent=agent)
    assert expected.fusion == 0
    assert alone["docno"].tolist() == [passages[place].id for place in expected.order]
    assert alone["score"].tolist() == pytest.approx([expected.scores[place] for place in expected.order])
