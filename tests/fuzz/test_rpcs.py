"""Odd requests to every method of five real services: none is INTERNAL, none crashes, none is left running.

How many: ``EVENMESH_FUZZ_REQUESTS``. Two hundred thousand: ``python -m tests.fuzz rpcs``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.fuzz import rpcs
from tests.fuzz.mesh import RPCS, FuzzMesh, Held

REQUESTS = int(os.environ.get("EVENMESH_FUZZ_REQUESTS", "600"))

pytestmark = pytest.mark.timeout(60 + REQUESTS)


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FuzzMesh]:
    """The services."""
    with FuzzMesh(tmp_path_factory.mktemp("fuzz")) as mesh:
        yield mesh


def test_every_method_of_the_contract_is_among_them() -> None:
    protos = (Path(__file__).parents[2] / "protos").rglob("*.proto")
    reported = sum(
        line.lstrip().startswith("rpc ") for path in protos for line in path.read_text().splitlines()
    )
    assert len({rpc.path for rpc in RPCS}) == reported


def test_what_was_once_taken_wrongly_is_not_any_more(mesh: FuzzMesh) -> None:
    for rpc, sent in rpcs.known():
        _, problem = mesh.run(rpcs.send(mesh, rpc, sent))
        assert not problem, (rpc.name, problem)


@st.composite
def _calls(draw: Any) -> tuple[Any, rpcs.Case]:
    rpc = draw(st.sampled_from(RPCS))
    return rpc, rpcs.case(rpc, draw(st.randoms(use_true_random=False)))


def test_whatever_is_sent_is_answered_or_refused(mesh: FuzzMesh) -> None:
    with rpcs.Incidents() as incidents:

        @settings(
            max_examples=max(1, REQUESTS // 10),
            deadline=None,
            database=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
            phases=(Phase.generate, Phase.shrink),
        )
        @given(_calls())
        def sent(call: tuple[Any, rpcs.Case]) -> None:
            rpc, case = call
            _, problem = mesh.run(rpcs.send(mesh, rpc, case))
            assert not problem, (rpc.name, problem, incidents.stacks[-1:])

        sent()


def test_many_at_a_time_leave_nothing_behind(mesh: FuzzMesh) -> None:
    with rpcs.Incidents() as incidents:
        mesh.run(rpcs.fuzz(mesh, rpcs.plan(100), seed=1))  # what is opened once and kept is open after these
        before = mesh.run(Held.now())
        tally = mesh.run(rpcs.fuzz(mesh, rpcs.plan(REQUESTS), seed=2))
    assert [one.line() for one in tally.findings] == [], incidents.stacks
    assert mesh.run(mesh.settled(rpcs.TIMEOUT_S)) == 0
    after = mesh.run(Held.now())
    # A few connections and threads of pools may come late; one for each call may not.
    assert after.descriptors <= before.descriptors + 24
    assert after.tasks <= before.tasks + 12
    assert after.threads <= before.threads + 24
    assert after.memory_mb <= before.memory_mb + 200
    assert mesh.run(rpcs.still_right(mesh)) == []


def test_the_same_seed_sends_the_same() -> None:
    for rpc in RPCS:
        assert rpcs.case(rpc, Random(f"1:{rpc.name}:0")) == rpcs.case(rpc, Random(f"1:{rpc.name}:0"))
