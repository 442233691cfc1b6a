"""``evenmesh sources`` against a retriever process: in step after any change, and after a kill at any point."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from evenmesh import Addresses, Client
from evenmesh.addresses import VARIABLES
from evenmesh.commands import main
from evenmesh_documents import commands, source_commands
from tests.integration.test_retriever_service import running
from tests.support import document_files as files
from tests.support.entry_points import bring

Output = pytest.CaptureFixture[str]
KILLED = """
import os, signal, sys
import typer
from evenmesh import Client
from evenmesh_documents import source_commands
from evenmesh_documents.syncing import sync

left = int(sys.argv[1])

def dying(method):
    def call(*args, **options):
        global left
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        left -= 1
        return method(*args, **options)
    return call

# One passage a change; the process dies before one of them.
apply = sync.apply
sync.apply = lambda *args, **options: apply(*args, **options, part=1)
Client.ingest, Client.delete_passages = dying(Client.ingest), dying(Client.delete_passages)
app = typer.Typer()
app.add_typer(source_commands.sources())
app(["sources", "sync", "docs"])
"""


@pytest.fixture(scope="module")
def addresses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Addresses]:
    """A mesh of which only the retriever is there, without vectors."""
    home = tmp_path_factory.mktemp("mesh")
    nowhere = "127.0.0.1:1"
    with running(home):
        yield Addresses(nowhere, (home / "retriever.address").read_text(), nowhere, nowhere, nowhere)


@pytest.fixture
def client(addresses: Addresses, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    """A client of it; commands find it too, and a home of their own."""
    monkeypatch.setenv("EVENMESH_HOME", str(tmp_path / "home"))
    for name, variable in VARIABLES.items():
        monkeypatch.setenv(variable, getattr(addresses, name))
    bring(monkeypatch, lambda: commands.commands)
    with Client(addresses) as made:
        yield made
        for one in made.collections():
            made.delete_collection(one.name)


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    """A folder of documents of three kinds, and passages."""
    folder = tmp_path / "docs"
    for name, data in {
        "acme/care.md": b"# Chains\n\nOil the chain every 200 km.\n\n# Tools\n\nA rag.\n",
        "acme/manual.pdf": files.pdf([[(18, "Brakes"), (11, "Clean them.")]]),
        "zeta/shop.csv": b"kind,price\nthin,3 EUR\n",
        "more.jsonl": b'{"id": "p1", "text": "Wash it.", "attributes": {"provider": "Club"}}\n',
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def ids(client: Client) -> list[str]:
    return [one.id for one in client.passages("bikes")]


def said(capsys: Output) -> str:
    out, err = capsys.readouterr()
    assert "Traceback" not in err
    return out


def test_a_source_stays_in_step(client: Client, docs: Path, capsys: Output) -> None:
    assert main(["sources", "add", "docs", str(docs), "-c", "bikes", "--grace", "0"]) == 0
    assert said(capsys) == "docs is a source of bikes; read it with: evenmesh sources sync docs\n"

    assert main(["sources", "sync", "--dry-run"]) == 0
    assert said(capsys).endswith("docs: would have 5 added or replaced\n")
    assert client.collections() == []

    assert main(["sources", "sync"]) == 0
    assert said(capsys) == "docs: 5 added or replaced\n"
    first = ids(client)
    assert [one.partition("#")[0] for one in first] == [
        "docs:acme/care.md",
        "docs:acme/care.md",
        "docs:acme/manual.pdf",
        "docs:more.jsonl",
        "docs:zeta/shop.csv",
    ]
    version = client.collection("bikes").version
    assert main(["sources", "sync", "docs"]) == 0
    assert said(capsys) == "docs: 5 unchanged\n"
    assert client.collection("bikes").version == version

    care = docs / "acme" / "care.md"
    care.write_text(care.read_text().replace("200", "300"))
    (docs / "zeta" / "shop.csv").unlink()
    assert main(["sources", "sync", "--dry-run"]) == 0
    assert said(capsys).endswith("docs: would have 1 added or replaced, 2 removed, 3 unchanged\n")
    assert ids(client) == first
    assert main(["sources", "sync"]) == 0
    assert said(capsys) == "docs: 1 added or replaced, 2 removed, 3 unchanged\n"
    # The text that stayed has the id that it had.
    assert len(set(first) & set(ids(client))) == 3
    assert "Oil the chain every 300 km." in {one.text for one in client.passages("bikes")}

    assert main(["sources", "list", "--count", "--json"]) == 0
    counts = {"files": 3, "passages": 4, "missing": 0}
    listed = {"name": "docs", "collection": "bikes", "paths": [str(docs)], "grace": "0"}
    assert json.loads(said(capsys)) == [listed | counts]


def test_a_missing_file_stays_for_the_grace_and_an_unreadable_one_for_ever(
    client: Client, docs: Path, capsys: Output
) -> None:
    assert main(["sources", "add", "docs", str(docs), "-c", "bikes"]) == 0
    assert main(["sources", "sync"]) == 0
    (docs / "zeta" / "shop.csv").unlink()
    (docs / "acme" / "manual.pdf").write_bytes(b"broken")
    said(capsys)
    assert main(["sources", "sync", "--json"]) == 0
    done = json.loads(said(capsys))
    assert (done["marked"], done["unread"], done["removed"], done["unchanged"]) == (1, 1, 0, 3)
    assert [one["address"] for one in done["skipped"]] == ["acme/manual.pdf"]
    marked = [one.id for one in client.passages("bikes") if "missing_since" in one.attributes]
    assert [one.partition("#")[0] for one in marked] == ["docs:zeta/shop.csv"]
    assert main(["sources", "add", "docs", str(docs), "-c", "bikes", "--grace", "0", "--replace"]) == 0
    assert main(["sources", "sync"]) == 0
    assert "docs: 1 removed, 3 unchanged, 1 kept of files that cannot be read\n" in said(capsys)


def test_a_source_that_is_absent_or_empty_removes_nothing(client: Client, docs: Path, capsys: Output) -> None:
    assert main(["sources", "add", "docs", str(docs), "-c", "bikes", "--grace", "0"]) == 0
    assert main(["sources", "sync"]) == 0
    away = docs.rename(docs.with_name("away"))
    assert main(["sources", "sync"]) == 1
    assert "No such file or directory" in capsys.readouterr().err
    docs.mkdir()
    assert main(["sources", "sync"]) == 1
    assert "has no file at all, and 5 passages in bikes: nothing is removed" in capsys.readouterr().err
    assert len(ids(client)) == 5
    assert main(["sources", "sync", "--allow-empty"]) == 0
    assert ids(client) == []
    docs.rmdir()
    away.rename(docs)
    assert main(["sources", "sync"]) == 0
    assert len(ids(client)) == 5


def test_sources_are_removed_with_their_passages_alone(client: Client, docs: Path, capsys: Output) -> None:
    for name in ("docs", "docs-2"):
        assert main(["sources", "add", name, str(docs), "-c", "bikes"]) == 0
    assert main(["sources", "sync"]) == 0
    assert main(["ingest", str(docs), "-c", "bikes"]) == 0
    assert len(ids(client)) == 15
    said(capsys)
    assert main(["sources", "remove", "docs", "--dry-run"]) == 0
    assert said(capsys) == "docs: 5 passages of bikes would be removed\n"
    assert main(["sources", "remove", "docs"]) == 0
    assert said(capsys) == "docs is removed, and 5 passages of bikes\n"
    assert not [one for one in ids(client) if one.startswith("docs:")]
    assert len(ids(client)) == 10
    # On another machine, without the file of sources, the collection says what is of a source.
    (docs.parent / "home" / "sources.yaml").unlink()
    assert main(["sources", "remove", "docs-2"]) == 2
    assert main(["sources", "remove", "docs-2", "-c", "bikes"]) == 0
    assert len(ids(client)) == 5


def test_watching_syncs_what_changes_and_nothing_else(
    client: Client, docs: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["sources", "add", "docs", str(docs), "-c", "bikes"]) == 0
    rounds: list[float] = []

    def waited(seconds: float) -> None:
        rounds.append(seconds)
        if len(rounds) == 2:
            (docs / "new.txt").write_text("A new tyre.")
        if len(rounds) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(source_commands, "_wait", waited)
    said(capsys)
    assert main(["sources", "sync", "--watch", "5"]) == 130
    # The second round finds no file changed and does not even read.
    assert said(capsys) == "docs: 5 added or replaced\ndocs: 1 added or replaced, 5 unchanged\n"
    assert rounds == [5.0, 5.0, 5.0]


def test_a_kill_at_any_point_is_continued_to_the_same_state(
    client: Client, docs: Path, capsys: Output
) -> None:
    assert main(["sources", "add", "docs", str(docs), "-c", "bikes", "--grace", "0"]) == 0
    assert main(["sources", "sync"]) == 0
    before = list(client.passages("bikes"))
    care = docs / "acme" / "care.md"
    care.write_text("# Chains\n\nOil the chain every 300 km.\n\n# Wax\n\nOr wax it.\n")
    (docs / "zeta" / "shop.csv").unlink()
    assert main(["sources", "sync"]) == 0
    after = list(client.passages("bikes"))

    for changes in (0, 1, 2, 3, 4):
        client.delete_passages("bikes", [one.id for one in after])
        client.ingest(before, "bikes")
        ended = subprocess.run(
            [sys.executable, "-c", KILLED, str(changes)], env=os.environ, check=False, capture_output=True
        )
        assert ended.returncode == -signal.SIGKILL, ended.stderr
        between = {one.id.partition("#")[0] for one in client.passages("bikes")}
        assert "docs:acme/care.md" in between
        said(capsys)
        assert main(["sources", "sync"]) == 0
        assert list(client.passages("bikes")) == after


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["add", "Docs", "x", "-c", "bikes"], "the name of a source must be 1 to 32 of a-z"),
        (["add", "docs", "x", "-c", "Bikes"], "collection must be 1 to 64 of a-z"),
        (["add", "docs", "x", "-c", "bikes", "--grace", "soon"], "grace must be a number with s, m, h or d"),
        (["add", "docs", "x", "-c", "bikes", "--size", "1"], "size must be 16 to 2,048"),
        (["sync"], "there is no source in"),
        (["sync", "nobody"], "there is no source 'nobody' in"),
        (["sync", "--watch", "0"], "--watch must be 1 to 86,400 seconds"),
        (["sync", "--watch", "9", "--dry-run"], "give one of them"),
        (["remove", "nobody"], "--collection names where its passages are"),
    ],
)
def test_what_cannot_be_done_is_said(client: Client, capsys: Output, words: list[str], message: str) -> None:
    assert main(["sources", *words]) == 2
    assert message in capsys.readouterr().err
