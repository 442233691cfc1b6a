"""Waits in queues: values by hand, and what holds between the formulas."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenmesh_core.errors import InvalidInput
from evenmesh_core.queueing import (
    erlang_c,
    flow_equivalent,
    g_g_c_wait,
    m_g_1_wait,
    m_m_c_wait,
    rate_at,
    simulated_responses,
    throughput_curve,
)

SERVICE = st.floats(0.01, 10)
LOAD = st.floats(0.01, 0.95)
SERVERS = st.integers(1, 40)


def test_erlang_c_of_one_server_is_its_utilisation() -> None:
    assert erlang_c(1, 0.7) == pytest.approx(0.7)


def test_erlang_c_of_two_servers_by_hand() -> None:
    # a = 1: the weights of 0 and 1 calls are 1 and 1, of two or more a²/2 · 1/(1 − a/2) = 1.
    assert erlang_c(2, 1.0) == pytest.approx(1 / (1 + 1 + 1))


def test_where_servers_do_not_suffice_all_wait_for_ever() -> None:
    assert erlang_c(3, 3.0) == 1.0
    assert m_m_c_wait(3.0, 1.0, 3) == math.inf
    assert m_g_1_wait(1.0, 1.0, 0.0) == math.inf
    assert g_g_c_wait(3.0, 1.0, 3, arrival_scv=0.0, service_scv=0.0) == math.inf


def test_pollaczek_khinchine_by_hand() -> None:
    # ρ = 1/2, s = 2: exponential service waits ρ·s/(1 − ρ) = 2, constant service half of that.
    assert m_g_1_wait(0.25, 2.0, 1.0) == pytest.approx(0.5 * 2 / (1 - 0.5))
    assert m_g_1_wait(0.25, 2.0, 0.0) == pytest.approx(0.5 * 2 / (1 - 0.5) / 2)


def test_two_servers_wait_by_hand() -> None:
    # λ = 1, s = 1, c = 2: C = 1/3, so 1/3 · 1/(2 − 1).
    assert m_m_c_wait(1.0, 1.0, 2) == pytest.approx(1 / 3)


@given(LOAD, SERVICE, SERVERS)
def test_allen_cunneen_is_exact_for_poisson_arrivals_and_exponential_service(
    load: float, service: float, servers: int
) -> None:
    rate = load * servers / service
    found = g_g_c_wait(rate, service, servers, arrival_scv=1.0, service_scv=1.0)
    assert found == pytest.approx(m_m_c_wait(rate, service, servers))


@given(LOAD, SERVICE, st.floats(0, 5))
def test_allen_cunneen_of_one_server_is_pollaczek_khinchine(load: float, service: float, scv: float) -> None:
    rate = load / service
    found = g_g_c_wait(rate, service, 1, arrival_scv=1.0, service_scv=scv)
    assert found == pytest.approx(m_g_1_wait(rate, service, scv))


@given(LOAD, SERVICE, SERVERS)
def test_a_station_as_fast_as_its_busy_servers_is_erlangs(load: float, service: float, servers: int) -> None:
    rate = load * servers / service
    speeds = np.arange(1, servers + 1) / service
    found = flow_equivalent(rate, speeds)
    assert found.response_s == pytest.approx(service + m_m_c_wait(rate, service, servers))
    assert found.in_system == pytest.approx(rate * found.response_s)


def test_a_station_that_slows_down_by_hand() -> None:
    # X = 2, 1; λ = 0.5: weights 1, 1/4, then each half of the one before: 1 + 1/4 + 1/8 + … = 3/2,
    # and calls 1/4·1 + 1/8·2 + 1/16·3 + … = 1/4 · Σ n·2^-(n-1) = 1/4 · 4.
    found = flow_equivalent(0.5, [2.0, 1.0])
    assert found.in_system == pytest.approx(1 / (3 / 2))
    assert found.busy == pytest.approx(1 - 1 / (3 / 2))


@given(st.lists(st.floats(0.5, 50), min_size=1, max_size=200), st.floats(0.01, 0.9), st.floats(1.01, 1.1))
def test_more_arrivals_never_wait_less(speeds: list[float], load: float, more: float) -> None:
    rate = load * speeds[-1]
    assert flow_equivalent(rate * more, speeds).in_system >= flow_equivalent(rate, speeds).in_system


def test_a_station_is_saturated_by_its_last_speed() -> None:
    assert flow_equivalent(3.0, [1.0, 2.0, 3.0]).response_s == math.inf


def test_hundreds_of_calls_do_not_overflow() -> None:
    found = flow_equivalent(500.0, np.arange(1, 1001, dtype=float))
    assert found.in_system == pytest.approx(500.0)  # as many as arrive in a second of service


def test_the_curve_is_linear_between_what_was_measured() -> None:
    assert throughput_curve([1, 3], [2.0, 4.0]).tolist() == [2.0, (2.0 + 4.0) / 2, 4.0]
    assert throughput_curve([2], [6.0]).tolist() == [6.0 / 2, 6.0]


def test_m_m_1_doubles_its_response_at_half_its_speed() -> None:
    # s/(1 − ρ) = 2·s at ρ = 1/2.
    found = rate_at(lambda rate: flow_equivalent(max(rate, 1e-9), [4.0]).response_s, 2 / 4.0, 4.0)
    assert found == pytest.approx(4.0 / 2)


@pytest.mark.parametrize(
    ("call", "argument"),
    [
        (lambda: erlang_c(0, 1.0), "servers"),
        (lambda: erlang_c(1, -1.0), "offered"),
        (lambda: m_m_c_wait(1.0, 0.0, 1), "service_s"),
        (lambda: m_g_1_wait(-1.0, 1.0, 1.0), "rate"),
        (lambda: m_g_1_wait(1.0, 1.0, -1.0), "service_scv"),
        (lambda: g_g_c_wait(1.0, 1.0, 1, arrival_scv=-1.0, service_scv=1.0), "arrival_scv"),
        (lambda: flow_equivalent(1.0, []), "throughputs"),
        (lambda: flow_equivalent(1.0, [1.0, 0.0]), "throughputs"),
        (lambda: rate_at(lambda rate: rate, 0.0, 1.0), "limit_s"),
    ],
    ids=["servers", "offered", "service", "rate", "scv", "arrivals", "none", "still", "limit"],
)
def test_what_is_out_of_range_is_named(call: object, argument: str) -> None:
    with pytest.raises(InvalidInput) as raised:
        call()  # type: ignore[operator]
    assert raised.value.argument.startswith(argument)


def test_calls_of_one_server_wait_for_those_before_them() -> None:
    # Served 0–2, 2–5 and 6–7.
    responses = simulated_responses([0.0, 1.0, 6.0], [2.0, 3.0, 1.0], replicas=1)
    assert responses.tolist() == [2.0, 4.0, 1.0]


def test_replicas_are_called_in_turn_even_where_another_is_free() -> None:
    # The third call goes to the first replica, which is busy until 10, though the second is free from 2.
    responses = simulated_responses([0.0, 1.0, 3.0], [10.0, 1.0, 1.0], replicas=2)
    assert responses.tolist() == [10.0, 1.0, 8.0]


def test_servers_of_one_replica_share_a_queue() -> None:
    responses = simulated_responses([0.0, 1.0, 3.0], [10.0, 1.0, 1.0], replicas=1, servers=2)
    assert responses.tolist() == [10.0, 1.0, 1.0]


@pytest.mark.parametrize(("servers", "load"), [(1, 0.5), (2, 0.7), (4, 0.8)])
def test_a_simulated_queue_waits_as_erlang_says(servers: int, load: float) -> None:
    rng = np.random.default_rng(servers)
    arrivals = np.cumsum(rng.exponential(1 / (load * servers), 100_000))
    responses = simulated_responses(arrivals, rng.exponential(1.0, 100_000), replicas=1, servers=servers)
    assert responses.mean() - 1 == pytest.approx(m_m_c_wait(load * servers, 1.0, servers), rel=0.08)


@given(st.lists(st.floats(0, 5), min_size=1, max_size=30), st.integers(1, 4), st.integers(1, 3))
def test_nobody_is_served_faster_than_alone(gaps: list[float], replicas: int, servers: int) -> None:
    responses = simulated_responses(np.cumsum(gaps), 0.5, replicas=replicas, servers=servers)
    assert (responses >= 0.5 - 1e-9).all()
    more = simulated_responses(np.cumsum(gaps), 0.5, replicas=replicas, servers=servers + 1)
    assert (more <= responses + 1e-9).all()


@pytest.mark.parametrize(
    ("arrivals", "services", "replicas", "complaint"),
    [
        ([1.0, 0.0], 1.0, 1, r"arrivals\[1\] is 0.0"),
        ([0.0, 1.0], [1.0], 1, r"len\(services\)"),
        ([0.0], 0.0, 1, r"services\[0\] is 0.0"),
        ([0.0], 1.0, 0, "replicas is 0"),
    ],
)
def test_a_queue_that_cannot_be_is_refused(
    arrivals: list[float], services: float | list[float], replicas: int, complaint: str
) -> None:
    with pytest.raises(InvalidInput, match=complaint):
        simulated_responses(arrivals, services, replicas=replicas)
