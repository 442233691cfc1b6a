import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from evenmesh import Passage, Report
from evenmesh.addresses import VARIABLES
from evenmesh.commands import application, main
from evenmesh.common.v1 import common_pb2
from evenmesh.retriever.v1 import retriever_service_pb2 as retriever_pb2
from evenmesh.wire.errors import Overloaded, Unauthenticated
from tests.support.scripted import Ask, ScriptedMesh, answered, script

Output = pytest.CaptureFixture[str]


pytestmark = pytest.mark.usefixtures("nobodys_terminal")


@pytest.fixture
def mesh(at_home: ScriptedMesh) -> ScriptedMesh:
    return at_home


def lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.splitlines()]


def test_ask_shows_answer_citations_exposure_and_what_degraded(mesh: ScriptedMesh, capsys: Output) -> None:
    assert main(["ask", "How often?", "--alpha", "2", "--samples", "2"]) == 0

    out, err = capsys.readouterr()
    assert err == ""
    assert lines(out) == [
        "every 200 kilometres",
        "",
        "  [1] Oil it  Co-op  p1",
        "",
        "Answers of 2 samples",
        "samples  answer",
        "      1  every 200 kilometres",
        "      1  often",
        "",
        "Exposure: who the model was shown, 2 rankings at α = 2",
        "provider                            share  exposure",
        "Co-op     ████████████████░░░░░░░░  66.7%      1.00",
        "Club      ████████░░░░░░░░░░░░░░░░  33.3%      0.50",
        "EE-D 0.250 (1: always the same passages; k / pool: all of the pool equally often) · expected utility 0.750",
        "! rerank degraded, retriever order: the reranker is away (UPSTREAM_UNAVAILABLE)",
        "",
        "retrieve 12 ms · total 40 ms",
        "run r1 · ask a1",
    ]
    assert "\x1b" not in out
    assert mesh.orchestrator.requests[0].sampling.num_rankings == 2


def test_ask_on_a_terminal_shows_the_same_words(
    mesh: ScriptedMesh, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "100")

    assert main(["ask", "How often?"]) == 0

    out, _ = capsys.readouterr()
    assert "\x1b[" in out
    for words in ("every ", "200 kilometres", "Oil it", "66.7%", "the reranker is away"):
        assert words in out


def test_ask_as_json_is_an_event_a_line(mesh: ScriptedMesh, capsys: Output) -> None:
    assert main(["ask", "How often?", "--json"]) == 0

    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [event["event"] for event in events] == [
        "retrieved", "ranked", "delta", "delta", "answer", "answer", "degraded", "report", "done",
    ]  # fmt: skip
    assert events[0]["passages"][0]["attributes"] == {"provider": "Co-op"}
    assert events[4]["citations"][0]["passage_id"] == "p1"
    assert events[4]["cost"]["reused_tokens"] == 30
    assert events[-1]["stage_ms"] == {"retrieve": 12.5}


def test_an_answer_without_deltas_is_shown_once(mesh: ScriptedMesh, capsys: Output) -> None:
    mesh.orchestrator.events = [event for event in script() if event.WhichOneof("event") != "delta"]

    assert main(["ask", "How often?"]) == 0

    assert lines(capsys.readouterr().out)[0] == "every 200 kilometres"


def test_empty_answers_are_named(mesh: ScriptedMesh, capsys: Output) -> None:
    answers = [answered("", (0,)), answered("often", (1,))]
    others = [one for one in script() if one.WhichOneof("event") not in ("delta", "answer", "done")]
    mesh.orchestrator.events = [*others, *answers]

    assert main(["ask", "How often?"]) == 0

    out = capsys.readouterr().out
    assert "The answer is empty: the model found none in its passages." in out
    assert "(empty)" in out  # in the table of samples


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        (
            [answered(dropped=2, cut=1)],
            [
                "too long for the model: 2 passages left out",
                "too long for the model: 1 passage cut at the end",
            ],
        ),
        (
            [answered(dropped=2), answered("often", (1,), dropped=1)],
            ["too long for the model: 3 passages of 2 contexts left out"],
        ),
        ([answered(turns=1)], ["the model did not read 1 earlier turn"]),
        ([answered(turns=2), answered("often", (1,), turns=3)], ["the model did not read 3 earlier turns"]),
        ([answered()], []),
    ],
)
def test_what_the_model_did_not_read_is_said(
    mesh: ScriptedMesh, capsys: Output, answers: list[Ask], said: list[str]
) -> None:
    mesh.orchestrator.events = [*answers, *script()[-1:]]

    assert main(["ask", "How often?"]) == 0

    out = lines(capsys.readouterr().out)
    assert [line for line in out if line.startswith("!")] == [f"! {one}" for one in said]


def test_retrievers_are_listed_the_default_first(mesh: ScriptedMesh, capsys: Output) -> None:
    assert main(["retrievers"]) == 0
    assert lines(capsys.readouterr().out) == [
        "retriever  engine      model   device  what it does",
        "bm25       csr         –       cpu     BM25",
        "dense      faiss-flat  minilm  cpu     dot�",
    ]
    assert main(["retrievers", "--json"]) == 0
    assert [one["is_default"] for one in json.loads(capsys.readouterr().out)] == [True, False]


def test_passages_are_removed_by_id(mesh: ScriptedMesh, capsys: Output) -> None:
    mesh.collections.kept["c"] = [common_pb2.Passage(id=name) for name in "ab"]

    assert main(["collection", "delete", "c", "a", "z"]) == 0
    assert capsys.readouterr().out == "c: 1 removed, 1 not found; 1 passages now\n"
    assert main(["collection", "delete", "c", "b", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["deleted"] == 1
    assert main(["collection", "delete", "d", "b"]) == 1
    assert "there is no collection 'd'" in capsys.readouterr().err


def test_no_answer_is_said_and_is_a_failure(mesh: ScriptedMesh, capsys: Output) -> None:
    mesh.orchestrator.events = [
        event for event in script() if event.WhichOneof("event") in {"retrieved", "done"}
    ]

    assert main(["ask", "How often?"]) == 1

    assert "No answer." in capsys.readouterr().out


def test_text_from_elsewhere_cannot_steer_the_terminal(mesh: ScriptedMesh, capsys: Output) -> None:
    mesh.orchestrator.events = [
        Ask(delta={"text": "a\x1b[2Jb"}), answered("a\x1b[2Jb"), *script()[-2:]
    ]  # fmt: skip

    assert main(["ask", "How often?"]) == 0

    out, _ = capsys.readouterr()
    assert "\x1b" not in out
    assert "a�[2Jb" in out


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["ask"], 2, "Missing argument"),
        (["ask", "q", "--samples", "0"], 2, "--samples"),
        (["ask", "q", "--k", "five"], 2, "--k"),
        (["ask", "q", "--alpha", "nine"], 2, "(see `evenmesh ask --help`)"),
        (["ask", " "], 2, "question: must not be empty"),
        (["ask", "q", "--stage", "both"], 2, "sampling_stage: must be one of retriever, reranker"),
        (["ask", "q", "--filter", "provider"], 2, "--filter provider: must be like"),
        (["nonsense"], 2, "No such command 'nonsense' (see"),
        (["up", "--generator", "none"], 2, "): 'none' is not one of 'in-process', 'triton', 'openai' (see"),
        (["collections", "--delete", "none"], 1, "name: there is no collection 'none'"),
        (["report", "r9"], 1, "run_id: there is no run 'r9'"),
        (["ingest", "none.jsonl", "-c", "x"], 1, "none.jsonl: No such file"),
    ],
)
def test_errors_are_one_line_and_a_status(
    mesh: ScriptedMesh, capsys: Output, arguments: list[str], status: int, said: str
) -> None:
    assert main(arguments) == status

    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1
    assert err.startswith("evenmesh: ")
    assert said in err


def test_what_to_do_about_an_error_is_said_once(mesh: ScriptedMesh, capsys: Output) -> None:
    for error, said in (
        (Unauthenticated("NO_CREDENTIAL", "send a key"), "EVENMESH_API_KEY"),
        (Overloaded("too many calls; try again in 2.52 s", 2.52), "try again in 2.52 s"),
        (Overloaded("too many calls", 2.52), "try again in 2.5 s"),
    ):
        mesh.orchestrator.events, mesh.orchestrator.error = [], error
        assert main(["ask", "q"]) == 1
        err = capsys.readouterr().err
        assert err.count("try again") == said.count("try again")
        assert said in err


def test_without_a_mesh_the_way_to_one_is_said(capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES.values():
        monkeypatch.setenv(name, "127.0.0.1:1")

    assert main(["ask", "q"]) == 1
    assert main(["status"]) == 1

    first, second = capsys.readouterr().err.splitlines()
    assert first == "evenmesh: no orchestrator answers at 127.0.0.1:1; start the mesh with: evenmesh up"
    assert second == "evenmesh: no mesh is running; start one with: evenmesh up"


def test_an_unexpected_error_is_a_line_and_a_traceback_on_demand(
    capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evenmesh.Client.__init__", lambda *_: 1 / 0)

    assert main(["runs"]) == 1
    assert (
        "ZeroDivisionError: division by zero (unexpected; EVENMESH_TRACEBACK=1 shows where)"
        in capsys.readouterr().err
    )

    monkeypatch.setenv("EVENMESH_TRACEBACK", "1")
    with pytest.raises(ZeroDivisionError):
        main(["runs"])


def test_ingest_says_what_it_did(mesh: ScriptedMesh, capsys: Output, tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text('{"id": "a", "text": "x"}\n', encoding="utf-8")

    assert main(["ingest", str(path), "--collection", "mine"]) == 0
    assert main(["ingest", str(path), "--collection", "mine", "--json"]) == 0

    out, _ = capsys.readouterr()
    first, second = out.splitlines()
    assert first == "mine: 1 added; 1 passages now"
    assert json.loads(second)["added"] == 1
    assert [passage.id for passage in mesh.collections.kept["mine"]] == ["a"]


def test_ingest_waits_for_vectors_unless_asked_not_to(
    mesh: ScriptedMesh, capsys: Output, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evenmesh._sync.retrieval.EMBEDDED_EVERY_S", 0.001)
    path = tmp_path / "p.jsonl"
    path.write_text('{"id": "a", "text": "x"}\n', encoding="utf-8")

    mesh.collections.shares = [0.0, 0.4, 0.8]
    assert main(["ingest", str(path), "--collection", "mine"]) == 0
    assert mesh.collections.shares == []
    mesh.collections.shares = [0.2, 0.4]
    assert main(["ingest", str(path), "--collection", "mine", "--no-wait"]) == 0
    assert mesh.collections.shares == [0.4]

    out, err = capsys.readouterr()
    assert out.splitlines() == [
        "mine: 1 added; 1 passages now",
        "mine: 1 added; 1 passages now, 20% of them with vectors, the rest follows",
    ]
    assert "making vectors of mine; it can be asked meanwhile" in err


def test_ask_shows_the_policy_of_a_target(mesh: ScriptedMesh, capsys: Output) -> None:
    policy = common_pb2.Policy(
        target_disparity=0.01,
        alpha=0.0,
        disparity=0.05,
        relevance=1.5,
        best_relevance=2.0,
        note="disparity 0.01 cannot be reached",
    )
    mesh.orchestrator.events = script()
    for event in mesh.orchestrator.events:
        if event.HasField("ranked"):
            event.ranked.policy.CopyFrom(policy)
    assert main(["ask", "How often?", "--disparity", "0.01"]) == 0

    out = lines(capsys.readouterr().out)
    assert "Exposure: who the model was shown, one sampled ranking at α = 0" in out
    at = next(place for place, line in enumerate(out) if line.startswith("Target "))
    assert out[at : at + 2] == [
        "Target disparity 0.01: α = 0, expected EE-D 0.050, relevance 1.500 of 2.000 without sampling "
        "(25.0% given up)",
        "! disparity 0.01 cannot be reached",
    ]
    assert mesh.orchestrator.requests[-1].sampling.disparity == 0.01


def test_retrieve_shows_passages_and_how_often_they_are_drawn(mesh: ScriptedMesh, capsys: Output) -> None:
    assert main(["retrieve", "oil", "-c", "c"]) == 0
    assert (
        main(["retrieve", "oil", "-c", "c", "--alpha", "1", "-n", "2", "--whole-collection", "--inclusion"])
        == 0
    )
    assert main(["retrieve", "oil", "--web", "SE", "--json"]) == 0
    assert main(["retrieve", "nothing", "-c", "c"]) == 0

    out, err = capsys.readouterr()
    assert lines(out)[:9] == [
        "passage  score  text",
        "p1         2.5  Oil it: " + ("Oil every 200 kilometres " * 9)[:63] + "…",
        "p2           1  Wipe�[2J it",
        "p3           0  Wax it",
        "passage  score  shown in  inclusion  text",
        "p1         2.5      100%      0.900  Oil it: " + ("Oil every 200 kilometres " * 9)[:63] + "…",
        "p2           1       50%      0.600  Wipe�[2J it",
        "p3           0       50%      0.500  Wax it",
        lines(out)[8],
    ]
    assert json.loads(lines(out)[8])["rankings"] == [[0, 1]]
    assert lines(out)[9:] == ["Nothing is found."]
    assert err.splitlines() == ["bm25, version v7; half of it"] * 2
    assert mesh.retriever.requests[1].whole_collection


def test_retrieve_needs_one_place_to_look(mesh: ScriptedMesh, capsys: Output) -> None:
    assert main(["retrieve", "oil"]) == 2
    assert main(["retrieve", "oil", "-c", "c", "--web", "SE"]) == 2
    assert capsys.readouterr().err.count("give one of --collection NAME and --web NAME") == 2
    assert mesh.retriever.requests == []


def test_sources_are_listed(mesh: ScriptedMesh, capsys: Output) -> None:
    assert main(["sources", "web"]) == 0
    mesh.retriever.sources = [retriever_pb2.Source(name="SE", description="the \x1bweb")]
    assert main(["sources", "web"]) == 0
    assert main(["sources", "web", "--json"]) == 0

    none, head, row, as_json = lines(capsys.readouterr().out)
    assert none.startswith("No web-search sources; EVENMESH_RETRIEVER_WEB_SOURCES adds some")
    assert head == "source  what it searches"
    assert row == "SE      the �web"
    assert json.loads(as_json) == [{"name": "SE", "description": "the \x1bweb"}]


def test_ask_with_an_expression_and_filters(mesh: ScriptedMesh, capsys: Output) -> None:
    arguments = [
        "ask",
        "q",
        "-e",
        "SE@RR@5&Wiki@5",
        "--filter",
        "provider=a,b",
        "--filter",
        "date=2020-01-01..",
    ]
    assert main(arguments) == 0

    (request,) = mesh.orchestrator.requests
    assert request.expression == "SE@RR@5&Wiki@5"
    provider, date = request.filter.conditions
    assert (provider.attribute, list(provider.any_of.values)) == ("provider", ["a", "b"])
    assert (date.attribute, getattr(date.text_range, "from")) == ("date", "2020-01-01")


def test_ingest_with_an_analyzer(mesh: ScriptedMesh, capsys: Output, tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text('{"id": "a", "text": "x"}\n', encoding="utf-8")

    words = ["ingest", str(path), "-c", "mine", "--analyzer", "english", "--k1", "0.9", "--b", "0"]
    assert main(words) == 0
    lexical = mesh.collections.lexical["mine"]
    assert (lexical.analyzer, lexical.k1, lexical.b) == ("english", 0.9, 0.0)
    assert main(["ingest", str(path), "-c", "mine", "--analyzer", "unicode"]) == 2
    assert "lexical: collection 'mine' exists and is indexed with" in capsys.readouterr().err


def test_a_malformed_file_names_the_line_and_sends_nothing(
    mesh: ScriptedMesh, capsys: Output, tmp_path: Path
) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text('{"id": "a", "text": "x"}\n{"id": 1}\n', encoding="utf-8")

    assert main(["ingest", str(path), "--collection", "mine"]) == 1

    assert capsys.readouterr().err == f"evenmesh: {path}, line 2: 'id' must be a string, not a number\n"
    assert mesh.collections.parts == 0


def test_collections_runs_and_reports(mesh: ScriptedMesh, capsys: Output) -> None:
    from evenmesh import Client

    with Client() as client:
        client.ingest([Passage("a", "x")], "one")

    assert main(["collections"]) == 0
    words = lines(capsys.readouterr().out)[1].split()
    assert (words[:6], words[-1]) == (["one", "1", "12", "kB", "minilm", "v1"], "0.0%")
    assert main(["runs", "--json"]) == 0
    assert [run["run_id"] for run in json.loads(capsys.readouterr().out)] == ["r5", "r4", "r3", "r2", "r1"]
    assert main(["report"]) == 0
    out, _ = capsys.readouterr()
    assert out.startswith("Run r5\n3 asks, 60 rankings, 0 unanswered;")
    assert "the target of the 1 with labels" in out
    assert "! rerank degraded in 1 asks (BUDGET_EXCEEDED)" in out
    assert "of one ranking it is 1" not in out
    assert main(["report", "r3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ee_d_norm"]["mean"] == 0.5


def test_a_disparity_of_single_rankings_says_that_it_is_one_by_construction(
    mesh: ScriptedMesh, capsys: Output
) -> None:
    mesh.evaluator.num_rankings = 3
    assert main(["report"]) == 0
    assert "of one ranking it is 1, however asks differ" in capsys.readouterr().out
    assert main(["ask", "How often?", "--alpha", "2"]) == 0
    assert "(of one ranking it is always 1; draw several with --samples)" in capsys.readouterr().out


def test_where_no_passage_was_shown_there_is_no_disparity(capsys: Output) -> None:
    from evenmesh.commands.screen import Screen
    from evenmesh.commands.views import show_exposure

    report = Report(exposure=(), ee_d_norm=0.0, ee_r_norm=None, expected_utility=0.5, providers=(), run=None)
    show_exposure(Screen(), report, heading="Exposure", single=True)
    assert capsys.readouterr().out == "Exposure\nno passage was shown · expected utility 0.500\n"


def test_status_counts_who_serves(
    mesh: ScriptedMesh, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["status", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["serving"], found["supervisor_pid"]) == (True, None)

    monkeypatch.setenv(VARIABLES["reranker"], "127.0.0.1:1")
    assert main(["status"]) == 1
    table = lines(capsys.readouterr().out)
    assert table[0].split() == ["service", "address", "health", "pid", "restarts"]
    assert table[3].split()[:3] == ["reranker", "127.0.0.1:1", "unreachable"]


def test_doctor_and_version_for_machines(capsys: Output) -> None:
    status = main(["doctor", "--json", "--port", "0"])
    found = json.loads(capsys.readouterr().out)
    assert status == (0 if found["able"] else 1)
    assert {"what", "level", "detail", "advice"} == set(found["findings"][0])

    assert main(["version", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["python"] == sys.version.split()[0]


def test_doctor_gives_advice_on_a_line_of_its_own(monkeypatch: pytest.MonkeyPatch, capsys: Output) -> None:
    monkeypatch.setenv("EVENMESH_ALLOW_INSECURE", "true")
    main(["doctor", "--port", "0"])
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert "unset EVENMESH_ALLOW_INSECURE unless something else guards it" in lines


def test_every_command_has_a_short_help(capsys: Output) -> None:
    assert main([]) == 0

    out, _ = capsys.readouterr()
    registered = [command.callback for command in application().registered_commands if command.callback]
    names = [function.__name__.replace("_", "-") for function in registered]
    assert [name for name in names if f"\n  {name} " not in out] == []
    assert "..." not in out.partition("Commands:")[2]


def test_down_without_a_mesh_is_no_error(capsys: Output) -> None:
    assert main(["down"]) == 0
    assert capsys.readouterr().err == "no mesh is running\n"


def test_a_reader_who_leaves_is_no_error(mesh: ScriptedMesh) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as nobody:
        run = subprocess.run(
            [sys.executable, "-m", "evenmesh", "ask", "q"], stdout=nobody, stderr=subprocess.PIPE, text=True
        )

    assert "Traceback" not in run.stderr
    assert "Broken" not in run.stderr


def test_a_service_of_a_mesh_that_runs_is_not_to_be_started(
    capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in VARIABLES.values():
        monkeypatch.setenv(name, "127.0.0.1:1")
    monkeypatch.setattr("evenmesh.addresses.running_here", lambda _=None: {"orchestrator": "127.0.0.1:1"})

    assert main(["ask", "q"]) == 1

    assert capsys.readouterr().err == (
        "evenmesh: no orchestrator answers at 127.0.0.1:1; its mesh runs, and starts it again if it ended: "
        "try again, or look at `evenmesh status`\n"
    )


@pytest.mark.parametrize("timeout", ["0", "1e10", "inf", "nan"])
def test_a_timeout_has_bounds(capsys: Output, timeout: str) -> None:
    assert main(["ask", "q", "--timeout", timeout]) == 2

    assert "'--timeout'" in capsys.readouterr().err


def test_ctrl_c_while_the_command_is_loaded_is_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    from evenmesh import __main__ as script

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("builtins.__import__", interrupted)
    status = script.main()
    monkeypatch.undo()
    assert status == 130


def test_ctrl_c_while_the_commands_of_other_packages_are_loaded_is_no_error(
    monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    def interrupted(**_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("evenmesh.commands.entry_points", interrupted)

    assert main(["down"]) == 130
    assert capsys.readouterr() == ("", "")
