"""Tenants share time by what they have had of it; one that asks for less than its share goes first."""

from __future__ import annotations

from collections import Counter

import pytest

from evenmesh_kit.compute.tenant_time import RecentTenants, TenantTime


def test_tenants_with_much_to_do_get_equal_time_whatever_their_pieces_take() -> None:
    time = TenantTime(0.0)
    had: Counter[str] = Counter()
    for _ in range(110):
        tenant = time.next(["a", "b"])
        took = 10 if tenant == "a" else 1
        had[tenant] += took
        time.charge(tenant, took)
    assert abs(had["a"] - had["b"]) <= 10


def test_a_tenant_that_comes_back_has_its_credit_and_no_more() -> None:
    """With 3 s of credit, b gets the pieces that end within 3 s of a's 100; then both take turns."""
    time = TenantTime(3.0)
    for _ in range(100):
        assert time.next(["a"]) == "a"
        time.charge("a", 1.0)
    order = []
    for _ in range(8):
        order.append(time.next(["a", "b"]))
        time.charge(order[-1], 1.0)
    # Virtual time is 99, where the last piece of a began: b begins at 96, and a goes on at 100.
    assert order == ["b", "b", "b", "b", "a", "b", "a", "b"]


def test_a_tenant_that_needs_less_than_half_is_always_next() -> None:
    time = TenantTime(1.0)
    for _ in range(50):
        for _ in range(3):
            assert time.next(["greedy"]) == "greedy"
            time.charge("greedy", 0.1)
        for _ in range(2):
            assert time.next(["greedy", "polite"]) == "polite"
            time.charge("polite", 0.1)


def test_who_has_had_less_is_in_credit_until_it_has_had_as_much() -> None:
    time = TenantTime(1.0)
    for _ in range(10):
        time.charge(time.next(["greedy"]), 0.5)
    assert not time.in_credit("greedy")
    seen = []
    for _ in range(4):
        tenant = time.next(["greedy", "polite"])
        seen.append((tenant, time.in_credit(tenant)))
        time.charge(tenant, 0.5)
    # Virtual time is 3.5: polite begins at 2.5 and has its second until then; greedy goes on at 4.
    assert seen == [("polite", True), ("polite", True), ("polite", False), ("greedy", False)]


def test_who_has_gone_is_forgotten() -> None:
    time = TenantTime(1.0)
    for number in range(1000):
        time.charge(time.next([f"t{number}"]), 0.5)
    for _ in range(8):
        time.charge(time.next(["last"]), 0.5)
    assert set(time._paid_until) == {"last"}
    with pytest.raises(ValueError, match="empty"):
        time.next([])


def test_a_tenant_is_recent_for_a_minute_and_only_to_others() -> None:
    now = [0.0]
    recent = RecentTenants(60.0, lambda: now[0])
    assert not recent.others("a")
    recent.note("a")
    assert not recent.others("a")
    assert recent.others("b")
    now[0] = 60.0
    recent.note("b")
    assert recent.others("a")
    assert recent.others("b")
    now[0] = 60.5
    assert not recent.others("b"), "a has asked too long ago"
    assert recent.others("a")
    now[0] = 200.0
    recent.note("c")
    assert set(recent._asked) == {"c"}, "who has gone is forgotten"
