"""Long runs: what may pass is tried again, what never fits is not."""

from __future__ import annotations

import grpc
import pytest

from evenmesh import long_runs
from evenmesh.wire.errors import MeshError, Overloaded


class Retries:
    """Remembers the reasons of retries."""

    def __init__(self) -> None:
        self.reasons: list[str] = []

    def retrying(self, why: MeshError, pause_s: float) -> None:
        self.reasons.append(why.reason)


@pytest.mark.parametrize("reason", ["OVER_CAPACITY", "REQUEST_TOO_LARGE", "OBSERVATION_TOO_LARGE"])
async def test_what_never_fits_is_not_tried_again(reason: str) -> None:
    retries, calls = Retries(), 0

    async def work() -> None:
        nonlocal calls
        calls += 1
        raise MeshError(grpc.StatusCode.RESOURCE_EXHAUSTED, reason, "send less at once")

    with pytest.raises(MeshError) as caught:
        await long_runs.with_retries(work, "query q1", retries, retry_for_s=60)
    assert (calls, retries.reasons, caught.value.reason) == (1, [], reason)


async def test_what_may_pass_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_runs, "_FIRST_PAUSE_S", 0.001)
    retries = Retries()

    async def work() -> str:
        if not retries.reasons:
            raise Overloaded("busy", 0.001)
        return "done"

    assert await long_runs.with_retries(work, "query q1", retries, retry_for_s=60) == "done"
    assert retries.reasons == ["OVERLOADED"]
