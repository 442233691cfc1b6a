import json
from html.parser import HTMLParser
from pathlib import Path

import pytest

from evenmesh.commands import main
from evenmesh.evaluator.v1 import evaluator_service_pb2 as evaluator_pb2
from tests.support.scripted import ScriptedMesh

Output = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def mesh(at_home: ScriptedMesh, nobodys_terminal: None) -> ScriptedMesh:
    return at_home


def test_a_window_is_asked_for_and_named(mesh: ScriptedMesh, capsys: Output) -> None:
    assert main(["report", "r1", "--window", "day"]) == 0

    out, _ = capsys.readouterr()
    assert out.startswith("Run r1, last 24 hours\n")
    assert "vote agreement" in out
    assert "retriever error" not in out
    assert mesh.evaluator.report_requests[0].window == evaluator_pb2.WINDOW_DAY


def test_a_configuration_is_found_by_what_tells_it_apart(mesh: ScriptedMesh, capsys: Output) -> None:
    assert main(["report", "--retriever", "bm25", "--alpha", "1", "--json"]) == 0

    assert json.loads(capsys.readouterr().out)["configuration"]["alpha"] == 1.0
    assert mesh.evaluator.report_requests[0].configuration.collection == "c"
    assert main(["report", "--retriever", "dense"]) == 0
    assert capsys.readouterr().out.startswith("Configuration c · dense · deterministic\n")
    assert main(["report", "--collection", "c", "--deterministic"]) == 0
    assert capsys.readouterr().out.startswith("Configuration c · dense · deterministic\n")


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (
            ["--retriever", "bm25"],
            2,
            "2 configurations have --retriever bm25: c · bm25 · α = 0; c · bm25 · α = 1",
        ),
        (["--retriever", "splade"], 1, "no configuration has --retriever splade"),
        (["r1", "--alpha", "1"], 2, "a run and --alpha"),
        (["--alpha", "1", "--deterministic"], 2, "--deterministic and --alpha: give one of the two"),
        (
            ["--retriever", "bm25", "--deterministic"],
            1,
            "no configuration has --retriever bm25 --deterministic",
        ),
        (["r1", "--window", "week"], 2, "--window is 'week'; allowed: all, hour, day"),
    ],
)
def test_what_cannot_be_reported_is_said(
    capsys: Output, arguments: list[str], status: int, said: str
) -> None:
    assert main(["report", *arguments]) == status

    assert said in capsys.readouterr().err


def test_configurations_are_listed(capsys: Output) -> None:
    assert main(["runs", "--configurations"]) == 0

    out = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert out[0][:5] == ["collection", "retriever", "reranker", "generator", "α"]
    assert [row[:2] for row in out[1:]] == [["c", "bm25"], ["c", "bm25"], ["c", "dense"]]


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.loaded: list[str] = []
        self.ids: list[str] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            if name in ("src", "href", "xlink:href", "action") and value and not value.startswith("#"):
                self.loaded.append(value)
            if name == "id" and value:
                self.ids.append(value)

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_a_page_of_a_run_holds_everything_itself(capsys: Output, tmp_path: Path) -> None:
    path = tmp_path / "run.html"
    assert main(["report", "r1", "--html", str(path)]) == 0

    page = _Page()
    page.feed(path.read_text(encoding="utf-8"))
    assert "script" not in page.tags
    assert page.loaded == []
    assert len(page.ids) == len(set(page.ids))
    assert page.tags.count("svg") == 3  # providers, passages, disparity against quality
    text = " ".join(page.texts)
    for words in ("Run r1", "vote agreement", "Co-op", "p1<b>", "disparity-quality", "BUDGET_EXCEEDED"):
        assert words in text


def test_a_page_of_a_window_has_no_curves_of_the_whole(tmp_path: Path) -> None:
    path = tmp_path / "run.html"
    assert main(["report", "r1", "--window", "hour", "--html", str(path)]) == 0

    text = path.read_text(encoding="utf-8")
    assert "of the last hour" in text
    assert "Tradeoffs" not in text
