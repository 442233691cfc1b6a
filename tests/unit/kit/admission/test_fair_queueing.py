"""Turns of tenants, as callers of a real server meet them: who they are is what their keys prove."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest

from evenmesh.common.v1.common_pb2 import ItemError
from evenmesh.wire import errors
from evenmesh.wire.credentials import Credential
from evenmesh.wire.security import ChannelSecurity
from evenmesh_kit.admission.queue import Admission
from evenmesh_kit.security import caller as callers
from evenmesh_kit.security import keys
from tests.support.waiting import until

ROOM = 4


class Served:
    """A servicer that lets four calls in and ends one when reported, and the order in which they began."""

    def __init__(self) -> None:
        self.admission = Admission(ROOM, "calls", queue_s=60.0)
        self.began: list[str] = []
        self._leave: list[asyncio.Event] = []

    async def unary(self, request: ItemError, context: Any) -> ItemError:
        async with self.admission.admit(1):
            self.began.append(callers.current().tenant)
            leave = asyncio.Event()
            self._leave.append(leave)
            await leave.wait()
        return request

    async def end_one(self) -> None:
        """Ends the call that began first; returns when the next one has begun, if any waits."""
        expected = len(self.began) + (1 if self.admission.waiting else 0)
        self._leave.pop(0).set()
        await until(lambda: len(self.began) == expected)


@pytest.mark.parametrize(
    ("weight", "turns"),
    [
        # Start tags of what waits: the flood's at 4, 5, 6, 7, after the four that run; the other's at 3, the
        # present, and then at 3 + 1 / weight, ...; of equal ones that which came first.
        (1.0, ["other", "flood", "other", "flood", "other", "flood", "other", "flood"]),
        (2.0, ["other", "other", "flood", "other", "other", "flood", "flood", "flood"]),
    ],
)
async def test_a_flood_takes_nobody_elses_turn(
    serve: Any, call: Any, tmp_path: Path, weight: float, turns: list[str]
) -> None:
    (tmp_path / "limits.toml").write_text(f"[tenants.other]\nweight = {weight}\n")
    served = Served()
    flood_key, other_key = keys.new_key(), keys.new_key()
    for tenant, (_, digest) in (("flood", flood_key), ("other", other_key)):
        entry = {"name": tenant, "sha256": digest, "tenant": tenant, "roles": ["admin"]}
        keys.add_entry(tmp_path / "keys.toml", keys.KeyEntry.read(entry))
    server = await serve(
        unary=served.unary,
        settings={"EVENMESH_API_KEYS": tmp_path / "keys.toml", "EVENMESH_LIMITS": tmp_path / "limits.toml"},
    )
    flood, other = (
        call(server, security=ChannelSecurity(None, Credential(key))) for key, _ in (flood_key, other_key)
    )
    calls = [asyncio.create_task(flood("unary", timeout=120)) for _ in range(40)]
    # Four run, four wait, and the rest of the flood is refused at once.
    await until(lambda: sum(one.done() for one in calls) == 40 - 2 * ROOM)
    refused = [one.exception() for one in calls if one.done()]
    assert all(isinstance(error, grpc.RpcError) for error in refused)
    reported = [errors.from_rpc_error(error) for error in refused if isinstance(error, grpc.RpcError)]
    assert {(error.code, error.reason) for error in reported} == {
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "OVERLOADED")
    }
    assert all(error.retry_after_s is not None for error in reported)
    # The other tenant's four find room in the queue all the same.
    others = [asyncio.create_task(other("unary", timeout=120)) for _ in range(ROOM)]
    await until(lambda: served.admission.waiting == 2 * ROOM)
    assert served.began == ["flood"] * ROOM
    for _ in range(2 * ROOM):
        await served.end_one()
    assert served.began[ROOM:] == turns
    for _ in range(ROOM):
        await served.end_one()
    assert [await one for one in others] == [["a"]] * ROOM
    assert served.admission.in_flight == 0
