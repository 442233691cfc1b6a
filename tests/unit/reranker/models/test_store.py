"""Versions on disk: immutable, verified, and never half there."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from evenmesh_reranker.domain import Agent, AllAgents
from evenmesh_reranker.models.manifest import FILE, Kind, Lineage, ManifestError
from evenmesh_reranker.models.store import ModelStore, Pointer

ANN = Agent("qa", "ann")
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    return ModelStore(tmp_path / "models", clock=lambda: NOON)


def _write(store: ModelStore, content: bytes = b"weights", **lineage: object) -> str:
    with store.write(Lineage(**{"provenance": "by hand", **lineage})) as draft:  # type: ignore[arg-type]
        (draft.folder / "model.safetensors").write_bytes(content)
        (draft.folder / "config.json").write_text("{}")
        draft.tokens = ("[unk-task]", "[task:qa]")
    return draft.version


def test_nothing_is_left_of_what_fails(store: ModelStore, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="the disk"), store.write(Lineage("x")) as draft:
        (draft.folder / "a").write_bytes(b"half")
        raise RuntimeError("the disk")
    assert not list((tmp_path / "models" / "incoming").iterdir())


@pytest.mark.parametrize(
    ("lineage", "said"),
    [
        (Lineage("x", kind=Kind.ADAPTER, agent=ANN), "an adapter has a base"),
        (Lineage("x", base="b"), "an adapter has a base"),
        (Lineage("x", kind=Kind.ADAPTER, base="b"), "an agent's own"),
        (Lineage("x", metrics={"utility": float("nan")}), "the metric utility is nan"),
    ],
)
def test_a_lineage_that_contradicts_itself(store: ModelStore, lineage: Lineage, said: str) -> None:
    with pytest.raises(ManifestError, match=said), store.write(lineage) as draft:
        (draft.folder / "a").write_bytes(b"x")


def _lose(folder: Path) -> None:
    (folder / "config.json").unlink()


def _add(folder: Path) -> None:
    (folder / "evil.bin").write_bytes(b"x")


def _rename(folder: Path) -> None:
    reported = json.loads((folder / FILE).read_text())
    (folder / FILE).write_text(json.dumps({**reported, "version": "0" * 16}))


def _advance(folder: Path) -> None:
    reported = json.loads((folder / FILE).read_text())
    (folder / FILE).write_text(json.dumps({**reported, "format": 2}))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (_lose, "config.json is missing"),
        (_add, "evil.bin is not in its manifest"),
        (_rename, "is of version 0000000000000000"),
        (_advance, "later version of evenmesh"),
    ],
)
def test_damage_is_named(store: ModelStore, tmp_path: Path, damage: object, said: str) -> None:
    version = _write(store)
    damage(tmp_path / "models" / "versions" / version)  # type: ignore[operator]
    with pytest.raises(ManifestError, match=said):
        store.verified(version)


def test_pointers_remember_what_was_served(store: ModelStore) -> None:
    assert store.pointer(AllAgents()) == Pointer()
    assert Pointer().rolled_back() is None
    pointer = Pointer().promoted("a").promoted("b").promoted("b")
    assert pointer == Pointer("b", ("a", None))
    store.set_pointer(AllAgents(), pointer)
    store.set_pointer(ANN, Pointer("c", (None,)))
    assert store.pointer(AllAgents()) == pointer
    assert store.pointers() == ({AllAgents(): pointer, ANN: Pointer("c", (None,))}, [])
    back = pointer.rolled_back()
    assert back == Pointer("a", (None,))
    assert back is not None
    assert back.rolled_back() == Pointer(None, ())


def test_a_pointer_that_is_damaged_says_so(store: ModelStore, tmp_path: Path) -> None:
    store.set_pointer(AllAgents(), Pointer("a"))
    store.set_pointer(ANN, Pointer("b"))
    for path in (tmp_path / "models" / "serving").iterdir():
        path.write_text("{")
    with pytest.raises(ManifestError, match=r"all\.json cannot be understood"):
        store.pointer(AllAgents())
    found, problems = store.pointers()
    assert (found, len(problems)) == ({}, 2)


def test_pointers_of_tenants_are_apart(store: ModelStore) -> None:
    # The ids of one agent are those of another in another place.
    whom = [
        AllAgents(),
        AllAgents("acme"),
        Agent("acme", ""),
        Agent("", "acme"),
        Agent("qa", "ann"),
        Agent("qa", "ann", "acme"),
        Agent("", "qa", "ann"),
    ]
    pointers = {scope: Pointer(f"version of {scope}") for scope in whom}
    for scope, pointer in pointers.items():
        store.set_pointer(scope, pointer)
    assert store.pointers() == (pointers, [])
    assert {scope: store.pointer(scope) for scope in whom} == pointers


def test_pointers_of_before_there_were_tenants_are_the_default_ones(
    store: ModelStore, tmp_path: Path
) -> None:
    store.set_pointer(AllAgents(), Pointer("a"))
    store.set_pointer(ANN, Pointer("b"))
    for path in (tmp_path / "models" / "serving").iterdir():
        reported = json.loads(path.read_text())
        del reported["tenant"]
        path.write_text(json.dumps(reported))
    assert store.pointers() == ({AllAgents(): Pointer("a"), ANN: Pointer("b")}, [])


def test_a_tenants_version_says_whose_it_is(store: ModelStore) -> None:
    theirs = Agent("qa", "ann", "acme")
    version = _write(store, agent=theirs, tenant="acme")
    assert store.manifest(version).lineage.scope == theirs
    assert store.manifest(_write(store, tenant="acme")).lineage.scope == AllAgents("acme")
    # What there was before there were tenants reads, and is named, as before.
    ours = store.manifest(_write(store))
    assert ours.lineage.scope == AllAgents()
    assert "tenant" not in (store.verified(ours.version)[0] / "manifest.json").read_text()
    with pytest.raises(ManifestError, match="its tenant's"):
        _write(store, agent=theirs)


def test_what_was_abandoned_is_removed_after_a_day(store: ModelStore, tmp_path: Path) -> None:
    _write(store)
    incoming = tmp_path / "models" / "incoming"
    for name, age in (("old", 2), ("new", 0)):
        (incoming / name).mkdir()
        long_ago = (datetime.now(UTC) - timedelta(days=age)).timestamp()
        os.utime(incoming / name, (long_ago, long_ago))
    store.tidy()
    assert [path.name for path in incoming.iterdir()] == ["new"]


_WRITER = """
import sys
from pathlib import Path
from evenmesh_reranker.domain import AllAgents
from evenmesh_reranker.models.manifest import Lineage
from evenmesh_reranker.models.store import ModelStore, Pointer
store = ModelStore(Path(sys.argv[1]))
print("ready", flush=True)
for turn in range(1_000_000):
    with store.write(Lineage(f"turn {turn}")) as draft:
        (draft.folder / "model.safetensors").write_bytes(bytes([turn % 256]) * 300_000)
    store.set_pointer(AllAgents(), store.pointer(AllAgents()).promoted(draft.version))
"""


def test_a_writer_killed_at_any_point_leaves_whole_versions(store: ModelStore, tmp_path: Path) -> None:
    for turn in range(6):
        command = [sys.executable, "-c", _WRITER, str(tmp_path / "models")]
        writer = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert writer.stdout is not None
        writer.stdout.readline()
        try:
            writer.wait(0.05 + 0.033 * turn)
        except subprocess.TimeoutExpired:
            writer.send_signal(signal.SIGKILL)
        writer.wait()
        writer.stdout.close()
        pointer = store.pointer(AllAgents())
        versions = list(store.manifests({}))
        for version in versions:
            store.verified(version)
        served = {one for one in (pointer.serving, *pointer.history) if one is not None}
        assert served <= set(versions)
    assert store.pointer(AllAgents()).serving is not None
