"""Which model serves whom: the rule of the reranker and of the online trainer, without any model."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenmesh.wire.errors import FailedPrecondition
from evenmesh_kit.compute.model_files import ModelError
from evenmesh_reranker.domain import Agent
from evenmesh_reranker.models.assignment import damage_named, model_of_agent, model_of_all
from evenmesh_reranker.models.manifest import Kind, Lineage, ManifestError
from evenmesh_reranker.models.store import Pointer

ANN = Agent("qa", "ann")
VERSIONS = st.one_of(st.none(), st.sampled_from(["a", "b", "c", "d"]))


class Loads:
    """Loads a version as its name, the default model as "default"; damaged versions cannot be loaded."""

    def __init__(self, *damaged: str | None, default: str | None = "default") -> None:
        self.damaged = damaged
        self.default = default
        self.tried: list[str | None] = []

    async def __call__(self, version: str | None) -> str | None:
        self.tried.append(version)
        if version in self.damaged:
            raise FailedPrecondition("DAMAGED_MODEL", f"version {version} cannot be served: it is damaged")
        return self.default if version is None else version


async def test_the_promoted_version_serves_and_nothing_else_is_loaded() -> None:
    loads = Loads()
    assert await model_of_all(Pointer("b", ("a", None)), loads) == "b"
    assert loads.tried == ["b"]
    assert await model_of_all(Pointer(), loads) == "default"


async def test_a_damaged_version_is_skipped_for_the_latest_before_it_and_reported(
    caplog: pytest.LogCaptureFixture,
) -> None:
    loads, skipped = Loads("c", "b"), list[str | None]()
    assert await model_of_all(Pointer("c", ("b", "c", "a")), loads, skipped=skipped.append) == "a"
    assert skipped == ["c", "b"] == [record.version for record in caplog.records]  # type: ignore[attr-defined]
    assert loads.tried == ["c", "b", "a"]  # each once


async def test_without_a_version_that_loads_the_default_model_serves_if_there_is_one() -> None:
    pointer = Pointer("b", ("a",))
    assert await model_of_all(pointer, Loads("a", "b")) == "default"
    assert await model_of_all(pointer, Loads("a", "b", default=None)) is None
    assert await model_of_all(Pointer("b", (None, "a")), Loads("b", default=None)) == "a"


@given(VERSIONS, st.lists(VERSIONS, max_size=6), st.sets(st.sampled_from(["a", "b", "c", "d"])))
async def test_what_serves_is_the_first_that_is_not_damaged(
    serving: str | None, history: list[str | None], damaged: set[str]
) -> None:
    found = await model_of_all(Pointer(serving, tuple(history)), Loads(*damaged))
    first = next(one for one in (serving, *history, None) if one not in damaged)
    assert found == (first or "default")


async def test_an_agent_gets_its_own_version_unless_it_is_damaged_or_does_not_apply() -> None:
    assert await model_of_agent(Pointer("own", ("older",)), Loads()) == "own"
    assert await model_of_agent(Pointer(None, ("older",)), Loads()) is None
    skipped: list[str] = []
    assert await model_of_agent(Pointer("own", ("older",)), Loads("own"), skipped=skipped.append) is None
    assert skipped == ["own"]

    async def does_not_apply(version: str) -> str | None:
        return None

    assert await model_of_agent(Pointer("own"), does_not_apply) is None


def test_an_adapter_applies_to_its_base_alone() -> None:
    adapter = Lineage("x", agent=ANN, kind=Kind.ADAPTER, base="b")
    assert [adapter.applies_to(base) for base in ("b", "c", None)] == [True, False, False]
    assert Lineage("x", agent=ANN).applies_to(None)


def test_damage_names_the_version_and_no_folder_of_the_server(tmp_path: Path) -> None:
    for error in (
        ManifestError("weights is missing"),
        ModelError(f"{tmp_path}/v cannot be loaded: it is short"),
    ):
        with (
            pytest.raises(FailedPrecondition, match="version v cannot be served: ") as refused,
            damage_named("v"),
        ):
            raise error
        assert str(tmp_path) not in refused.value.message
