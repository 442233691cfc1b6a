"""Turns of tenants in a queue."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenmesh_kit.compute.tenant_turns import TenantTurns

Item = tuple[str, int]


def _turns() -> TenantTurns[Item]:
    return TenantTurns(lambda item: item[0])


def test_a_tenant_that_comes_late_is_next() -> None:
    turns = _turns()
    for at in range(5):
        turns.append(("greedy", at))
    assert [turns.popleft() for _ in range(2)] == [("greedy", 0), ("greedy", 1)]
    turns.append(("polite", 0))
    assert [turns.popleft()[0] for _ in range(3)] == ["polite", "greedy", "greedy"]
    turns.append(("polite", 1))
    assert [turns.popleft()[0] for _ in range(2)] == ["polite", "greedy"]
    assert len(turns) == 0


def test_a_tenant_that_may_not_begin_holds_nobody_up() -> None:
    turns = _turns()
    for item in (("a", 0), ("b", 0)):
        turns.append(item)
    assert turns.first() == ("a", 0)
    assert turns.first(lambda item: item[0] != "a") == ("b", 0)
    assert turns.first(lambda _: False) is None
    assert list(turns) == [("a", 0), ("b", 0)], "looking removes nothing"


def test_an_empty_queue_has_no_next() -> None:
    with pytest.raises(IndexError):
        _turns().popleft()
    assert _turns().first() is None


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=40))
def test_each_tenants_order_is_kept_and_shares_differ_by_one(tenants: list[str]) -> None:
    turns = _turns()
    for at, tenant in enumerate(tenants):
        turns.append((tenant, at))
    left = {tenant: tenants.count(tenant) for tenant in set(tenants)}
    taken = dict.fromkeys(left, 0)
    seen: dict[str, list[int]] = {tenant: [] for tenant in left}
    while len(turns):
        tenant, at = turns.popleft()
        seen[tenant].append(at)
        taken[tenant] += 1
        waiting = [count for name, count in taken.items() if count < left[name]]
        assert not waiting or max(waiting) - min(waiting) <= 1
    assert all(places == sorted(places) for places in seen.values())
