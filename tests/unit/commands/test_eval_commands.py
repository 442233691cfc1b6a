import csv
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from evenmesh.commands import main

Output = pytest.CaptureFixture[str]
ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = ROOT / "examples" / "eval"
FAST = ("--resamples", "100")


@pytest.fixture(autouse=True)
def in_the_examples(monkeypatch: pytest.MonkeyPatch, nobodys_terminal: None) -> None:
    monkeypatch.chdir(EXAMPLES)


def test_exposure_shows_tables_and_writes_files(capsys: Output, tmp_path: Path) -> None:
    arguments = ["audit.jsonl", "--qrels", "labels.jsonl", "--k", "2", "--group-by", "provider", *FAST]
    outputs = ("json", "csv", "html")
    written = [part for name in outputs for part in (f"--{name}", str(tmp_path / f"out.{name}"))]
    assert main(["eval", "exposure", *arguments, *written, "--plot", str(tmp_path / "out.svg")]) == 0

    out, err = capsys.readouterr()
    assert out.startswith("Expected exposure in the first 2\nsystem  α  queries")
    assert "Exposure by provider" in out
    assert "not shown: most exposed passages (60 rows); --csv FILE writes them" in err
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "out-curves.csv", "out-dial-disparity.svg", "out-dial-quality.svg", "out-disparity-quality.svg",
        "out-exposure-groups.svg", "out-exposure-passages.svg",
        "out-groups.csv", "out-passages.csv", "out-summary.csv", "out.csv", "out.html", "out.json",
    ]  # fmt: skip
    rows = list(csv.DictReader((tmp_path / "out.csv").open(encoding="utf-8", newline="")))
    # q1's only deterministic ranking shows p1 and p2; p1 and p3 are useful.
    assert (rows[0]["query_id"], rows[0]["alpha"], rows[0]["ee_d"], rows[0]["ee_r"]) == (
        "q1",
        "",
        "2.0",
        "1.0",
    )
    assert json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))["k"] == 2


def test_json_alone_goes_to_standard_output(capsys: Output) -> None:
    assert main(["eval", "utility", "audit.jsonl", "--k", "2", "--json", "-", *FAST]) == 0

    found = json.loads(capsys.readouterr().out)
    assert found["study"] == "utility"
    assert [row["eu"] for row in found["rows"][:2]] == [1.0, 1.0]


def test_conversations_are_compared_system_by_system(capsys: Output) -> None:
    assert main(["eval", "conversation", "talker.txt", "teller.txt", *FAST]) == 0

    out, err = capsys.readouterr()
    assert "talker" in out
    assert "GF ORIGIN" in out
    assert err == (
        "note: no --attributes: RATINGS, ORIGIN compared with equal shares of the groups, by RNOD\n"
    )


def test_votes_take_similarities_weights_and_training(capsys: Output) -> None:
    options = ["--similarity", "token_f1", "--similarity", "containment_em=2", "--weight", "dense=0.05"]
    assert main(["eval", "vote", "ensemble.jsonl", *options, "--json", "-", *FAST]) == 0

    found = json.loads(capsys.readouterr().out)
    assert found["similarity_weights"] == [1.0, 2.0]
    assert found["retriever_weights"] == [1.0, 0.05, 1.0]
    assert found["wins"][1] == 0

    assert main(["eval", "vote", "ensemble.jsonl", "--tune", "ensemble.jsonl", *FAST]) == 0
    assert "Weights were searched on 4 training questions" in capsys.readouterr().out


def test_inconsistency_shows_who_wins(capsys: Output, tmp_path: Path) -> None:
    plot = tmp_path / "w.png"
    arguments = ["ensemble.jsonl", "--retrievers", "hybrid,bm25", "--plot", str(plot), *FAST]
    assert main(["eval", "inconsistency", *arguments]) == 0

    out, _ = capsys.readouterr()
    assert re.search(r"retriever +hybrid +bm25\nhybrid +0\.000 +1\.000\nbm25 +1\.000 +0\.000", out)
    assert (tmp_path / "w-win-ratios.png").exists()


def test_a_narrow_terminal_gets_columns_in_parts(capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "60")

    assert main(["eval", "exposure", "audit.jsonl", "--qrels", "labels.jsonl", "--k", "2", *FAST]) == 0

    out = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
    assert "…" not in out.partition("Tradeoffs")[0]
    for label in ("EE-D", "EE-R", "EE-L", "EE-D, of its bound", "EE-R, of its bound"):
        assert label in out


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["exposure"], 2, "Missing argument"),
        (["exposure", "none.trec"], 1, "none.trec: No such file or directory"),
        (["exposure", "labels.jsonl"], 1, "labels.jsonl:1: has no 'ranking'; columns: "),
        (["exposure", "audit.jsonl", "--qrels", "bm25.trec"], 1, "bm25.trec:1: has 6 columns instead of 4"),
        (["exposure", "audit.jsonl", "--plot", "x.gif"], 2, "--plot is 'x.gif'; allowed: .png, .svg or .pdf"),
        (["exposure", "audit.jsonl", "--html", "nowhere/x.html"], 2, "there is no folder 'nowhere'"),
        (["exposure", "audit.jsonl", "--group-by", "provider"], 2, "the labels do not have it"),
        (["exposure", "audit.jsonl", "--passages", "labels.jsonl"], 2, "--passages needs --group-by"),
        (["exposure", "audit.jsonl", "--browsing", "rbp:2"], 2, "--browsing is 'rbp:2'"),
        (["exposure", "audit.jsonl", "--browsing", "cascade"], 2, "--browsing is 'cascade'"),
        (["exposure", "audit.jsonl", "--level", "95"], 2, "--level is 95; allowed: between 0 and 1"),
        (["exposure", "audit.jsonl", "--interval", "t"], 2, "--interval is 't'; allowed: bca, percentile"),
        (["exposure", "audit.jsonl", "--k", "0"], 2, "--k"),
        (["exposure", "audit.jsonl", "--min-grade", "nan"], 2, "'--min-grade': nan is not a number above 0"),
        (["exposure", "audit.jsonl", "--min-grade", "0"], 2, "'--min-grade': 0 is not a number above 0"),
        (["utility", "audit.jsonl", "--metric", "bleu"], 2, "metric is 'bleu'; allowed: token_f1"),
        (["utility", "audit.jsonl", "--baseline", "dense"], 2, "baseline is 'dense'; allowed: bm25"),
        (["conversation", "talker.txt", "--irrelevant", "x"], 2, "--irrelevant is 'x'"),
        (["conversation", "qrels.txt"], 1, "qrels.txt:1: is 'q1 0 q1-p1 1'; allowed: a topic first"),
        (["vote", "ensemble.jsonl", "--similarity", "bleu"], 2, "'bleu'; allowed: token_f1"),
        (["vote", "ensemble.jsonl", "--similarity", "nli"], 2, "--nli-model: not set"),
        (["vote", "ensemble.jsonl", "--similarity", "token_f1=x"], 2, "--similarity is 'token_f1=x'"),
        (["vote", "ensemble.jsonl", "--weight", "splade=1"], 2, "--weight names 'splade'; allowed: bm25"),
        (["vote", "ensemble.jsonl", "--pooling", "sum"], 2, "--pooling is 'sum'; allowed: mean, max"),
        (["inconsistency", "ensemble.jsonl", "--judge", "bem"], 2, "judge is 'bem'; allowed: exact_match"),
        (["inconsistency", "ensemble.jsonl", "--retrievers", "bm25"], 2, "at least 2"),
        (["inconsistency", "ensemble.jsonl", "--retrievers", "x"], 1, "has no retriever 'x'"),
    ],
)
def test_errors_are_one_line_and_a_status(
    capsys: Output, arguments: list[str], status: int, said: str
) -> None:
    assert main(["eval", *arguments]) == status

    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1
    assert err.startswith("evenmesh: ")
    assert said in err


@pytest.mark.parametrize(
    ("missing", "arguments"),
    [
        ("matplotlib", ["exposure", "audit.jsonl", "--plot", "x.png"]),
        ("pyarrow", ["exposure", "none.parquet"]),
    ],
)
def test_a_missing_package_is_named_with_the_way_to_it(
    capsys: Output, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, missing: str, arguments: list[str]
) -> None:
    for name in [
        name for name in sys.modules if name.partition(".")[0] == missing or "evenmesh_lab.figures" in name
    ]:
        monkeypatch.delitem(sys.modules, name)
    import evenmesh_lab

    monkeypatch.delattr(evenmesh_lab, "figures", raising=False)
    monkeypatch.setitem(sys.modules, missing, None)

    plotted = [str(tmp_path / part) if part == "x.png" else part for part in arguments]
    assert main(["eval", *plotted, *FAST]) == 1

    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith(f"evenmesh: this needs {missing}")
    assert said.endswith("pip install -c constraints.txt -r workspace.txt")


def test_help_loads_nothing_heavy_and_lists_the_studies() -> None:
    probe = (
        "import sys; from evenmesh.commands import main; main(['eval']); "
        "print(sorted({name.split('.')[0] for name in sys.modules} "
        "& {'grpc', 'matplotlib', 'numpy', 'pyarrow', 'evenmesh_lab', 'evenmesh_core', 'scipy', 'torch'}))"
    )
    run = subprocess.run([sys.executable, "-c", probe], check=True, capture_output=True, text=True)

    assert run.stdout.splitlines()[-1] == "[]"
    for name in ("exposure", "utility", "conversation", "vote", "inconsistency"):
        assert f"\n  {name} " in run.stdout
    assert "..." not in run.stdout.partition("Commands:")[2]


def _documented() -> list[str]:
    text = (ROOT / "docs" / "guides" / "eval.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```sh\n(.*?)```", text, flags=re.DOTALL)
    return [
        line
        for block in blocks
        for line in block.replace("\\\n", " ").splitlines()
        if "evenmesh eval" in line
    ]


def test_commands_of_the_documentation_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in EXAMPLES.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    monkeypatch.chdir(tmp_path)

    commands = _documented()
    assert len(commands) >= 5
    assert {line: main([*shlex.split(line)[1:], *FAST]) for line in commands} == dict.fromkeys(commands, 0)


def test_programs_of_the_documentation_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in EXAMPLES.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs" / "guides" / "eval.md").read_text(encoding="utf-8")
    programs = [
        one for one in re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL) if "evenmesh_lab" in one
    ]

    assert programs
    for program in programs:
        exec(compile(program, "docs/guides/eval.md", "exec"), {})  # noqa: S102 - our own page
    assert (tmp_path / "tradeoff.svg").exists()
