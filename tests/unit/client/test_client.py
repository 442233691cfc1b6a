import itertools
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from evenmesh import (
    Addresses,
    Agent,
    Answer,
    Between,
    Citation,
    Client,
    Cost,
    Decoding,
    Degraded,
    Delta,
    Done,
    GroupShare,
    Health,
    Lexical,
    MeshError,
    Passage,
    Policy,
    Ranked,
    ReadError,
    Report,
    Retrieved,
)
from evenmesh.common.v1 import common_pb2
from evenmesh.evaluator.v1 import evaluator_service_pb2 as evaluator_pb2
from evenmesh.generator.v1 import generator_service_pb2 as generator_pb2
from evenmesh.ingest import requests
from evenmesh.orchestrator.v1 import orchestrator_service_pb2 as orchestrator_pb2
from evenmesh.retriever.v1 import collection_service_pb2_grpc as collection_grpc
from evenmesh.wire.errors import InvalidField
from tests.support.scripted import ScriptedMesh, answered


@pytest.fixture
def client(scripted: ScriptedMesh) -> Iterator[Client]:
    with Client(scripted.addresses) as client:
        yield client


def test_an_ask_yields_typed_events_in_order(client: Client) -> None:
    events = list(client.ask("How often?"))

    assert [type(event).__name__ for event in events] == [
        "Retrieved", "Ranked", "Delta", "Delta", "Answer", "Answer", "Degraded", "Report", "Done",
    ]  # fmt: skip
    retrieved, ranked, first, _, answer, _, degraded, report, done = events
    assert isinstance(retrieved, Retrieved)
    assert retrieved.passages[0] == Passage("p1", "Oil every 200 kilometres", "Oil it", {"provider": "Co-op"})
    assert retrieved.passages[1].provider == "Club"
    assert (retrieved.scores, retrieved.retriever, retrieved.index_version) == ((2.0, 1.0), "bm25", "v7")
    assert isinstance(ranked, Ranked)
    assert ranked.contexts == ((0, 1), (1, 0))
    assert first == Delta("every ")
    assert isinstance(answer, Answer)
    assert answer.citations == (Citation("p1", "Co-op", 1, 3, 9),)
    assert (answer.finish_reason, answer.engine, answer.samples) == ("stop", "pointer", (0,))
    assert (answer.dropped_passages, answer.cut_passages, answer.dropped_turns) == (0, 0, 0)
    assert answer.cost == Cost(0.5, 4.0, 9.0, computed_tokens=60, reused_tokens=30, batch_rows=2)
    assert degraded == Degraded("rerank", "retriever_order", "UPSTREAM_UNAVAILABLE", "the reranker is away")
    assert isinstance(report, Report)
    assert (report.ee_r_norm, report.expected_utility, report.run) == (None, 0.75, None)
    assert [share.name for share in report.providers] == ["Co-op", "Club"]
    assert done == Done("a1", "r1", {"retrieve": 12.5}, 40.0)


def test_answer_gathers_all_of_it(client: Client) -> None:
    result = client.answer("How often?")

    assert result.text == "every 200 kilometres"
    assert result.samples_by_answer() == {"every 200 kilometres": 1, "often": 1}
    assert [citation.passage_id for citation in result.citations] == ["p1"]
    assert result.done is not None
    assert result.done.ask_id == "a1"


def test_samples_are_counted_by_answer(scripted: ScriptedMesh, client: Client) -> None:
    scripted.orchestrator.events = [answered("b", (1,)), answered("a", (0, 2, 3)), answered("b", (4,))]

    assert list(client.answer("q").samples_by_answer().items()) == [("a", 3), ("b", 2)]


def test_every_option_reaches_its_field(scripted: ScriptedMesh, client: Client) -> None:
    client.answer(
        "q",
        passages=[Passage("x", "text", "title", {"provider": "p"})],
        alpha=2,
        samples=20,
        seed=7,
        sampling_stage="reranker",
        k=3,
        depth=50,
        rerank_depth=10,
        retriever="dense",
        reranker="none",
        model="m",
        augmentation="in_prompt",
        decoding=Decoding(num_beams=4, max_new_tokens=16, temperature=0.5, top_p=0.9, seed=3),
        num_answers=5,
        agent=Agent("task", "model"),
        references=["r"],
        useful=["x"],
        metric="rouge_l",
        run_id="run",
        query_id="query",
        observe=False,
        run_report=True,
        turns=[("before", "said")],
    )

    (sent,) = scripted.orchestrator.requests
    want = orchestrator_pb2.AskRequest(
        question="q",
        retriever="dense",
        reranker="none",
        model="m",
        depth=50,
        k=3,
        rerank_depth=10,
        num_answers=5,
        sampling=common_pb2.Sampling(alpha=2, num_rankings=20, seed=7),
        sampling_stage=orchestrator_pb2.SAMPLING_STAGE_RERANKER,
        augmentation=generator_pb2.AUGMENTATION_IN_PROMPT,
        decoding=generator_pb2.Decoding(num_beams=4, max_new_tokens=16, temperature=0.5, top_p=0.9, seed=3),
        agent=common_pb2.Agent(task_id="task", model_id="model"),
        labels=evaluator_pb2.Labels(
            useful_passage_ids=["x"],
            has_useful=True,
            references=["r"],
            metric=evaluator_pb2.UTILITY_METRIC_ROUGE_L,
        ),
        run_id="run",
        query_id="query",
        skip_observation=True,
        want_report=True,
        turns=[generator_pb2.Turn(question="before", answer="said")],
    )
    want.candidates.passages.add(id="x", text="text", title="title", attributes={"provider": "p"})
    assert sent == want


def test_options_that_are_left_out_are_not_sent(scripted: ScriptedMesh, client: Client) -> None:
    client.answer("q", collection="demo")
    client.answer("q", collection=None, samples=3)

    plain, sampled = scripted.orchestrator.requests
    assert plain == orchestrator_pb2.AskRequest(question="q", collection="demo")
    assert sampled == orchestrator_pb2.AskRequest(question="q", sampling=common_pb2.Sampling(num_rankings=3))


def test_a_seed_is_that_of_sampled_words_too(scripted: ScriptedMesh, client: Client) -> None:
    """The reply states one drawn seed for both, so giving it back must repeat both."""
    client.answer("q", seed=7, decoding=Decoding(temperature=1))
    client.answer("q", seed=7, decoding=Decoding(temperature=1, seed=3))
    client.answer("q", seed=7, samples=2, decoding=Decoding(temperature=1))
    client.answer("q", seed=7, decoding=Decoding(num_beams=2))

    words, own, rankings, greedy = scripted.orchestrator.requests
    assert (words.decoding.seed, words.HasField("sampling")) == (7, False)
    assert own.decoding.seed == 3
    assert (rankings.sampling.seed, rankings.decoding.HasField("seed")) == (7, False)
    assert not greedy.decoding.HasField("seed")


def test_a_target_is_sent_and_its_policy_is_read(scripted: ScriptedMesh, client: Client) -> None:
    policy = common_pb2.Policy(
        kind=common_pb2.Policy.KIND_PLACKETT_LUCE,
        target_relevance_loss=0.02,
        alpha=3.5,
        disparity=0.25,
        relevance=1.96,
        best_relevance=2.0,
        relevance_kind=common_pb2.Policy.RELEVANCE_PROBABILITY,
        reached=True,
    )
    ranked = orchestrator_pb2.Ranked(contexts=common_pb2.Rankings(depth=1, indices=[0]), policy=policy)
    scripted.orchestrator.events = [orchestrator_pb2.AskResponse(ranked=ranked)]
    result = client.answer("q", relevance_loss=0.02)
    client.answer("q", disparity=0.0, samples=3)
    client.answer("q", shares=[GroupShare("provider", at_most=0.4), GroupShare("group", "f", at_least=0.0)])

    loss, disparity, shares = (one.sampling for one in scripted.orchestrator.requests)
    every, female = shares.shares
    assert (every.attribute, every.value, every.at_most, every.HasField("at_least")) == (
        "provider",
        "",
        0.4,
        False,
    )
    assert (female.value, female.HasField("at_least"), female.HasField("at_most")) == ("f", True, False)
    assert (loss.relevance_loss, loss.HasField("alpha"), loss.HasField("disparity")) == (0.02, False, False)
    assert (disparity.disparity, disparity.HasField("disparity"), disparity.num_rankings) == (0.0, True, 3)
    assert result.ranked is not None
    found = result.ranked.policy
    assert found == Policy("plackett_luce", None, 0.02, (), 3.5, 0.25, 1.96, 2.0, "probability", True, "", ())
    assert found.relevance_loss == pytest.approx(0.02)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"k": -1}, "k"),
        ({"depth": 2**32}, "depth"),
        ({"samples": 2.5}, "sampling.num_rankings"),
        ({"alpha": 1.0, "seed": -1}, "sampling.seed"),
        ({"collection": "a", "passages": []}, "collection"),
        ({"retriever": "\ud800"}, "retriever"),
        ({"model": 7}, "model"),
        ({"metric": "bleu"}, "metric"),
        ({"sampling_stage": "generator"}, "sampling_stage"),
        ({"decoding": Decoding(num_beams=-1)}, "decoding.num_beams"),
    ],
)
def test_a_value_that_does_not_fit_its_field_names_it(
    client: Client, options: dict[str, object], field: str
) -> None:
    with pytest.raises(MeshError) as caught:
        client.ask("q", **options)  # type: ignore[arg-type]

    assert caught.value.code is grpc.StatusCode.INVALID_ARGUMENT
    assert caught.value.field == field


def test_an_option_that_does_not_exist_is_a_type_error(client: Client) -> None:
    with pytest.raises(TypeError, match="no option sample"):
        client.ask("q", sample=3)  # type: ignore[call-arg]


def test_the_mesh_s_own_error_comes_through(client: Client) -> None:
    with pytest.raises(MeshError) as caught:
        list(client.ask(" "))

    assert (caught.value.reason, caught.value.field) == ("INVALID_FIELD", "question")


def test_an_unreachable_mesh_names_its_address() -> None:
    with Client(Addresses(orchestrator="127.0.0.1:1")) as client, pytest.raises(MeshError) as caught:
        list(client.ask("q"))

    assert caught.value.reason == "UNREACHABLE"
    assert "no orchestrator answers at 127.0.0.1:1" in str(caught.value)


def test_leaving_an_ask_cancels_it(scripted: ScriptedMesh, client: Client) -> None:
    scripted.orchestrator.hang = True
    events = client.ask("q", timeout=30)
    next(events)

    events.close()  # type: ignore[attr-defined]

    assert scripted.orchestrator.cancelled.wait(10)


def test_an_ask_ends_at_its_timeout(scripted: ScriptedMesh, client: Client) -> None:
    scripted.orchestrator.hang = True

    with pytest.raises(MeshError) as caught:
        list(client.ask("q", timeout=0.3))

    assert caught.value.code is grpc.StatusCode.DEADLINE_EXCEEDED


def test_ingest_sends_parts_that_fit_a_message(scripted: ScriptedMesh, client: Client) -> None:
    progress: list[int] = []
    passages = [Passage(str(n), "x" * 60_000) for n in range(40)]

    done = client.ingest(passages, "big", on_progress=progress.append)

    assert (done.added, done.collection.name) == (40, "big")
    assert [passage.id for passage in scripted.collections.kept["big"]] == [str(n) for n in range(40)]
    assert scripted.collections.parts == 3  # 17 passages of 60 kB make a MiB
    assert progress[-1] == 40
    assert progress == sorted(progress)


def test_ingest_of_a_file(scripted: ScriptedMesh, client: Client, tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text('{"id": "a", "text": "x"}\n{"id": "b", "text": "y"}\n', encoding="utf-8")

    assert client.ingest(path, "file").added == 2
    assert client.ingest(str(path), "file").added == 2


def test_nothing_of_a_bad_file_is_sent(scripted: ScriptedMesh, client: Client, tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text('{"id": "a", "text": "x"}\n{"id": "b"\n', encoding="utf-8")

    with pytest.raises(ReadError, match="line 2"):
        client.ingest(path, "file")

    assert scripted.collections.parts == 0


def test_passages_that_fail_on_the_way_leave_nothing(scripted: ScriptedMesh, client: Client) -> None:
    def passages() -> Iterator[Passage]:
        for n in range(1200):
            yield Passage(str(n), "x")
        raise RuntimeError("the source broke")

    with pytest.raises(RuntimeError, match="the source broke"):
        client.ingest(passages(), "broken")

    assert "broken" not in scripted.collections.kept


def test_only_the_last_message_of_an_ingest_is_marked() -> None:
    parts = list(requests((Passage(str(n), "x") for n in range(1200)), "c", create=True))

    assert [(len(part.passages), part.last) for part in parts] == [(500, False), (500, False), (200, True)]
    assert [part.last for part in requests([], "c", create=True)] == [True]


def test_an_ingest_that_is_cut_off_leaves_nothing(scripted: ScriptedMesh) -> None:
    parts = requests((Passage(str(n), "x") for n in range(1200)), "half", create=True)

    with (
        grpc.insecure_channel(scripted.addresses.retriever) as channel,
        pytest.raises(grpc.RpcError, match="must be set in the last message"),
    ):
        collection_grpc.CollectionServiceStub(channel).Ingest(itertools.islice(parts, 2), timeout=20)

    assert scripted.collections.parts == 2
    assert "half" not in scripted.collections.kept


def test_a_rejected_ingest_gives_its_reason(client: Client) -> None:
    with pytest.raises(MeshError) as caught:
        client.ingest((Passage(str(n), "x") for n in range(5000)), "Bad")

    assert caught.value.field == "collection"


def test_collections_can_be_listed_and_removed(client: Client) -> None:
    client.ingest([Passage("a", "x")], "one")

    (found,) = client.collections()
    assert (found.name, found.num_passages, found.encoder) == ("one", 1, "minilm")
    client.delete_collection("one")
    assert client.collections() == []
    with pytest.raises(MeshError) as caught:
        client.delete_collection("one")
    assert (caught.value.code, caught.value.field) == (grpc.StatusCode.NOT_FOUND, "name")


def test_runs_come_page_by_page(client: Client) -> None:
    assert [run.run_id for run in client.runs()] == ["r5", "r4", "r3", "r2", "r1"]
    assert [run.run_id for run in client.runs(3)] == ["r5", "r4", "r3"]


def test_a_report_distinguishes_undefined_from_zero(client: Client) -> None:
    report = client.report("r3")

    assert (report.ee_d_norm.mean, report.ee_d_norm.low, report.ee_d_norm.high) == (0.5, 0.25, 0.75)
    assert (report.expected_utility.mean, report.expected_utility.undefined) == (None, 3)
    assert report.stages["generate"].mean == 80.0
    assert report.providers[0].target == 1.5
    assert report.degradations[0].reason == "BUDGET_EXCEEDED"


def test_status_distinguishes_serving_from_unreachable(scripted: ScriptedMesh) -> None:
    address = scripted.addresses.orchestrator
    with Client(Addresses(address, address, "127.0.0.1:1", address, address)) as client:
        found = {one.service: one.health for one in client.status()}

    assert found == {
        "orchestrator": Health.SERVING,
        "retriever": Health.SERVING,
        "reranker": Health.UNREACHABLE,
        "generator": Health.SERVING,
        "evaluator": Health.SERVING,
    }


def test_importing_the_package_loads_nothing_heavy() -> None:
    code = (
        "import sys, json, evenmesh; light = sorted(sys.modules); evenmesh.Client;"
        "print(json.dumps([light, sorted(sys.modules)]))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    imported, with_client = json.loads(run.stdout)

    assert {"grpc", "google.protobuf", "typer", "rich", "numpy", "torch"}.isdisjoint(imported)
    assert {"torch", "transformers", "scipy", "typer", "rich"}.isdisjoint(with_client)


def test_every_public_name_is_there() -> None:
    import evenmesh

    assert [name for name in evenmesh.__all__ if getattr(evenmesh, name, None) is None] == []
    with pytest.raises(AttributeError, match="Cleint"):
        _ = evenmesh.Cleint  # type: ignore[attr-defined]


def test_addresses_prefer_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("EVENMESH_HOME", str(tmp_path))
    monkeypatch.setenv("EVENMESH_CLIENT_RETRIEVER_TARGET", "dns:///retriever:1")

    assert Addresses.find(tmp_path) == Addresses(retriever="dns:///retriever:1")
    with Client("mesh.example:1") as mesh:
        assert mesh.addresses == Addresses("mesh.example:1", retriever="dns:///retriever:1")


def test_a_home_without_a_mesh_is_no_silent_way_to_anothers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("EVENMESH_HOME", raising=False)
    assert Addresses.find(tmp_path) == Addresses()
    monkeypatch.setenv("EVENMESH_HOME", str(tmp_path))
    assert Addresses.find(orchestrator="mesh.example:1") == Addresses("mesh.example:1")
    assert not caplog.records
    assert Addresses.find() == Addresses()
    assert f"no mesh of EVENMESH_HOME={tmp_path} runs" in caplog.text


def test_a_collection_is_created_with_its_indexing(scripted: ScriptedMesh, client: Client) -> None:
    made = client.create_collection("mine", description="of tests", lexical=Lexical("english", b=0.0))
    assert (made.name, made.description, made.lexical) == ("mine", "of tests", Lexical("english", None, 0.0))
    there = client.collection("mine")
    assert there.lexical == Lexical("english", None, 0.0)
    assert (there.num_segments, there.dense_recall, there.embedded) == (3, 0.5, 1.0)
    with pytest.raises(MeshError, match="already"):
        client.create_collection("mine")


def test_an_ingest_creates_the_collection_or_requires_its_indexing(
    scripted: ScriptedMesh, client: Client
) -> None:
    passages = [Passage("a", "x")]
    client.ingest(passages, "mine", lexical=Lexical("english", k1=0.9))
    client.ingest(passages, "mine", lexical=Lexical("english"))
    client.ingest(passages, "mine", lexical=Lexical(k1=0.9), create=False)
    assert len(scripted.collections.kept["mine"]) == 1
    parts = scripted.collections.parts
    for other in (Lexical("unicode"), Lexical("english", k1=1.0), Lexical(b=0.5)):
        with pytest.raises(MeshError, match="collection 'mine' exists and is indexed with") as caught:
            client.ingest(passages, "mine", lexical=other)
        assert caught.value.field == "lexical"
    assert scripted.collections.parts == parts, "nothing was sent"
    with pytest.raises(MeshError, match="no collection 'none'"):
        client.ingest(passages, "none", lexical=Lexical("english"), create=False)


def test_an_ask_sends_its_expression_and_filter(scripted: ScriptedMesh, client: Client) -> None:
    wanted = {"provider": ["a", "b"], "date": Between("2020-01-01"), "language": "en"}
    list(client.ask("q", expression="SE@RR@5&Wiki@5", filter=wanted, augmentation="compression"))
    (request,) = scripted.orchestrator.requests
    assert request.expression == "SE@RR@5&Wiki@5"
    assert request.augmentation == generator_pb2.AUGMENTATION_COMPRESSION
    assert [one.attribute for one in request.filter.conditions] == ["provider", "date", "language"]


@pytest.mark.parametrize("timeout", [0.0, -1.0, float("nan")])
def test_a_timeout_is_above_0(timeout: float) -> None:
    with pytest.raises(InvalidField, match="timeout: must be above 0 seconds"):
        Client("127.0.0.1:1", timeout=timeout)
    with Client("127.0.0.1:1") as client, pytest.raises(InvalidField, match="timeout: must be above 0"):
        client.collections(timeout=timeout)


def test_a_timeout_longer_than_grpc_counts_is_a_day(scripted: ScriptedMesh) -> None:
    with Client(scripted.addresses, timeout=float("inf")) as client:
        assert client.collections(timeout=1e12) is not None
