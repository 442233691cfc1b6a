from collections.abc import Iterator

import pytest

from evenmesh import AsyncClient, Client, Configuration, MeshError
from evenmesh.evaluator.v1 import evaluator_service_pb2 as evaluator_pb2
from tests.support.scripted import ScriptedMesh

CONFIGURATION = Configuration("c", "bm25", "none", "pointer", 0.0)


@pytest.fixture
def client(scripted: ScriptedMesh) -> Iterator[Client]:
    with Client(scripted.addresses) as client:
        yield client


def test_a_report_of_a_window_asks_for_it_and_says_so(scripted: ScriptedMesh, client: Client) -> None:
    report = client.report("r1", window="hour")

    assert scripted.evaluator.report_requests[0].window == evaluator_pb2.WINDOW_HOUR
    assert (report.run_id, report.window, report.configuration) == ("r1", "hour", None)
    assert report.vote_agreement.mean == 0.9
    assert report.retriever_error.mean is None
    assert [share.name for share in report.passages] == ["p1<b>"]


def test_a_report_of_a_configuration_keeps_an_alpha_of_zero(scripted: ScriptedMesh, client: Client) -> None:
    report = client.report(configuration=CONFIGURATION)

    request = scripted.evaluator.report_requests[0]
    assert request.run_id == ""
    assert request.configuration.HasField("alpha")
    assert report.configuration == CONFIGURATION
    assert report.window == "all"


def test_a_report_is_of_a_run_or_a_configuration(client: Client) -> None:
    with pytest.raises(MeshError, match="run_id: must be given, or else a configuration"):
        client.report()
    with pytest.raises(MeshError, match="run_id"):
        client.report("r1", configuration=CONFIGURATION)
    with pytest.raises(MeshError, match="window: must be one of all, hour, day"):
        client.report("r1", window="week")  # type: ignore[arg-type]


def test_configurations_come_page_by_page(client: Client) -> None:
    found = [one.configuration for one in client.configurations()]

    assert [(one.retriever, one.alpha) for one in found] == [("bm25", 0.0), ("bm25", 1.0), ("dense", None)]
    assert len(client.configurations(2)) == 2


def test_measurements_are_streamed_and_their_errors_raised(client: Client) -> None:
    found = list(client.measurements("r1"))

    assert [one.observation_id for one in found] == ["q1-0.0", "q1-2.0", "q2-0.0", "q2-2.0"]
    assert found[1].quantities == {"ee_d_norm": 0.75, "ee_r_norm": 0.75}
    assert found[0].configuration.alpha == 0.0
    with pytest.raises(MeshError, match="there is no run 'r9'"):
        list(client.measurements("r9"))


def test_an_observation_has_what_was_shown_and_said(client: Client) -> None:
    found = client.observation("q1-2.0")

    assert (found.question, found.alpha, found.seed, found.useful) == ("Who?", 2.0, None, None)
    assert [found.candidates[place].passage_id for ranking in found.shown for place in ranking] == [
        "p2",
        "p1",
    ]
    assert found.answers[0].text == "I"
    assert found.answers[0].cited == (1,)
    with pytest.raises(MeshError, match="there is no observation 'q9'"):
        client.observation("q9")


async def test_the_async_client_does_the_same(scripted: ScriptedMesh) -> None:
    async with AsyncClient(scripted.addresses) as client:
        assert (await client.report("r1", window="day")).window == "day"
        assert len(await client.configurations()) == 3
        assert len([one async for one in client.measurements("r1")]) == 4
        with pytest.raises(MeshError, match="there is no run 'r9'"):
            [one async for one in client.measurements("r9")]
