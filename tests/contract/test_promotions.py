"""The contract of what keeps promotions: files of one machine, and the database."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from sqlalchemy import update

from evenmesh_reranker.backends.sql.database import Database
from evenmesh_reranker.backends.sql.promotions import SqlPromotions
from evenmesh_reranker.backends.sql.tables import PROMOTIONS
from evenmesh_reranker.domain import Agent, AllAgents, Scope
from evenmesh_reranker.models.file_promotions import FilePromotions
from evenmesh_reranker.models.manifest import ManifestError
from evenmesh_reranker.models.ports import Pointers, Promotions, WithdrawnError
from evenmesh_reranker.models.store import ModelStore, Pointer
from tests.support.postgres import empty_database

ANN, ALL = Agent("qa", "ann"), AllAgents()
HOUR_US = 3600 * 10**6


@asynccontextmanager
async def _opened(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[list[Database]]:
    url = empty_database(request, kind, tmp_path)
    opened = [Database(url) for _ in range(2)]
    for one in opened:
        await one.open()
    yield opened
    for one in opened:
        await one.close()


@pytest.fixture(params=["sqlite", "postgresql"])
async def databases(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[list[Database]]:
    """Two processes' connections to one database."""
    async with _opened(request.param, request, tmp_path) as opened:
        yield opened


@pytest.fixture(params=["files", "sqlite", "postgresql"])
async def both(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[list[Promotions]]:
    """Two processes' promotions."""
    if request.param == "files":
        yield [FilePromotions(ModelStore(tmp_path / "models")) for _ in range(2)]
        return
    async with _opened(request.param, request, tmp_path) as opened:
        yield [SqlPromotions(one) for one in opened]


async def test_what_one_promotes_the_other_finds(both: list[Promotions]) -> None:
    one, two = both
    assert (await two.pointers(), await two.pointer(ALL), await two.changed_at(ALL)) == (
        ({}, []),
        Pointer(),
        None,
    )
    promoted: dict[Scope, Pointer] = {
        ALL: Pointer("a", (None,)),
        AllAgents("acme"): Pointer("b"),
        Agent(): Pointer("c", ("b", None)),
        ANN: Pointer(None, ("a",)),
        Agent("qa", "ann", "acme"): Pointer("d"),
        Agent("", "", "acme"): Pointer("e"),
    }
    stamps = [await two.stamp()]
    for scope, pointer in promoted.items():
        assert await one.replace(scope, Pointer(), pointer)
        stamps.append(await two.stamp())
    assert await one.replace(ALL, promoted[ALL], Pointer("z", ("a", None)))
    stamps.append(await two.stamp())
    assert await one.replace(ALL, Pointer("z", ("a", None)), promoted[ALL])
    stamps.append(await two.stamp())
    assert len(set(stamps)) == len(stamps)
    assert await two.pointers() == (promoted, [])
    assert [await two.pointer(scope) for scope in promoted] == list(promoted.values())
    assert await two.changed_at(ALL) is not None


async def test_of_changes_at_once_each_sees_the_one_before(both: list[Promotions]) -> None:
    async def promote(version: str, promotions: Promotions) -> int:
        for turn in range(100):
            before = await promotions.pointer(ALL)
            if await promotions.replace(ALL, before, before.promoted(version)):
                return turn
        raise AssertionError("it was never its turn")

    assert not await both[0].replace(ALL, Pointer("other"), Pointer("x"))
    await asyncio.gather(*(promote(str(at), both[at % 2]) for at in range(10)))
    pointer = await both[0].pointer(ALL)
    assert sorted([pointer.serving or "", *(one or "" for one in pointer.history)]) == ["", *"0123456789"]
    assert pointer.history[-1] is None


async def test_what_is_being_removed_is_not_promoted(both: list[Promotions]) -> None:
    one, two = both
    assert await one.replace(ALL, Pointer(), Pointer("a"))
    seen: list[Pointers] = []

    def choose(pointers: Pointers) -> list[str]:
        seen.append(pointers)
        return ["b", "c"]

    async with one.withdrawing(choose) as versions:
        assert list(versions) == ["b", "c"]
        promoting = asyncio.create_task(two.replace(ALL, Pointer("a"), Pointer("b", ("a",))))
        # In files it waits until they are removed; the database refuses it.
        await asyncio.wait([promoting], timeout=0.2)
        assert not promoting.done() or isinstance(promoting.exception(), WithdrawnError)
        assert await two.pointer(ALL) == Pointer("a")
    await asyncio.wait([promoting])
    assert seen == [{ALL: Pointer("a")}]
    pointer = await two.pointer(ALL)
    assert await two.replace(ALL, pointer, Pointer("c"))


async def test_a_removal_that_fails_leaves_what_can_be_promoted(both: list[Promotions]) -> None:
    with pytest.raises(RuntimeError, match="the disk"):
        async with both[0].withdrawing(lambda _: ["b"]):
            raise RuntimeError("the disk")
    assert await both[1].replace(ALL, Pointer(), Pointer("b"))


async def test_nothing_is_withdrawn_while_a_promotion_is_not_understood(
    both: list[Promotions], tmp_path: Path
) -> None:
    one, two = both
    assert await one.replace(ALL, Pointer(), Pointer("a"))
    assert await one.replace(ANN, Pointer(), Pointer("b"))
    if isinstance(one, FilePromotions):
        (tmp_path / "models" / "serving" / "all.json").write_text("{")
    else:
        assert isinstance(one, SqlPromotions)
        async with one._database.write() as connection:
            broken = update(PROMOTIONS).where(PROMOTIONS.c.everyone == 1).values(history="{")
            await connection.execute(broken)
    with pytest.raises(ManifestError, match="cannot be understood"):
        await two.pointer(ALL)
    found, problems = await two.pointers()
    assert (found, len(problems)) == ({ANN: Pointer("b")}, 1)
    async with two.withdrawing(lambda _: ["c"]) as versions:
        assert list(versions) == []
    assert await two.replace(ALL, Pointer("whatever"), Pointer("d"))
    assert await one.pointer(ALL) == Pointer("d")


async def test_a_removal_that_died_is_done_by_the_next_after_an_hour(databases: list[Database]) -> None:
    now = 10 * HOUR_US
    one, two = (SqlPromotions(database, clock=lambda: now) for database in databases)

    await one._withdraw(lambda _: ["a"])  # and is killed
    async with two.withdrawing(lambda _: ["a", "b"]) as versions:
        assert list(versions) == ["b"]
    with pytest.raises(WithdrawnError):
        await two.replace(ALL, Pointer(), Pointer("a"))
    now += HOUR_US + 1
    async with two.withdrawing(lambda _: []) as versions:
        assert list(versions) == ["a"]
    assert await two.replace(ALL, Pointer(), Pointer("a"))


async def test_promotions_of_files_are_taken_over_once(databases: list[Database], tmp_path: Path) -> None:
    folder = ModelStore(tmp_path / "models")
    one, two = (SqlPromotions(database) for database in databases)
    await one.adopt(folder)
    assert await one.pointers() == ({}, [])
    promoted: dict[Scope, Pointer] = {
        ALL: Pointer("a", (None,)),
        ANN: Pointer("b"),
        AllAgents("acme"): Pointer(),
    }
    for scope, pointer in promoted.items():
        folder.set_pointer(scope, pointer)
    await asyncio.gather(one.adopt(folder), two.adopt(folder))
    assert await two.pointers() == (promoted, [])
    folder.set_pointer(ALL, Pointer("c"))
    await two.adopt(folder)
    assert await one.pointer(ALL) == promoted[ALL]
