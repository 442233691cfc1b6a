"""Queues: how long calls wait where a service is busy, and at which rate that becomes too long.

Times are in seconds, rates in calls per second. The squared coefficient of variation (``scv``) is a variance
over a squared mean: 0 where all are equal, 1 for exponential times and Poisson arrivals.

Sources: Kleinrock, Queueing Systems, volume I (1975), chapters 3 and 5; Allen, Probability, Statistics and
Queueing Theory (2nd edition 1990), chapter 5; Lazowska, Zahorjan, Graham & Sevcik, Quantitative System
Performance (1984), chapters 3 and 8; Kiefer & Wolfowitz, On the Theory of Queues with Many Servers (1955).
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from evenmesh_core.arrays import FloatArray, count, float_array, number, same_length
from evenmesh_core.errors import InvalidInput

_HALVINGS = 60


def erlang_c(servers: int, offered: float) -> float:
    """Return the probability that a call has to wait in M/M/c (Erlang's C formula).

    Args:
        servers: servers c, from 1.
        offered: offered load λ·s in erlangs, from 0.

    Returns:
        From 0 to 1; 1 where ``offered`` reaches ``servers``, as then all calls wait in the end.

    Source: Kleinrock 1975, eq. 3.40, through Erlang's B and its recursion, which does not overflow.

    Raises:
        InvalidInput: an argument out of range.
    """
    count("servers", servers)
    number("offered", offered, low=0.0)
    if offered >= servers:
        return 1.0
    blocking = 1.0
    for busy in range(1, servers + 1):
        blocking = offered * blocking / (busy + offered * blocking)
    return servers * blocking / (servers - offered * (1 - blocking))


def m_m_c_wait(rate: float, service_s: float, servers: int) -> float:
    """Return the mean wait before service in M/M/c, ``inf`` from saturation on.

    Args:
        rate: arrivals per second, from 0.
        service_s: mean service time, above 0.
        servers: servers c, from 1.

    Source: Kleinrock 1975, §3.5.

    Raises:
        InvalidInput: an argument out of range.
    """
    offered = _offered(rate, service_s)
    count("servers", servers)
    if offered >= servers:
        return math.inf
    return erlang_c(servers, offered) * service_s / (servers - offered)


def m_g_1_wait(rate: float, service_s: float, service_scv: float) -> float:
    """Return the mean wait before service in M/G/1 by the formula of Pollaczek and Khinchine.

    Args:
        rate: arrivals per second, from 0.
        service_s: mean service time, above 0.
        service_scv: squared coefficient of variation of service times, from 0.

    Returns:
        ``ρ·s·(1 + scv) / (2·(1 − ρ))``; ``inf`` from saturation on.

    Source: Kleinrock 1975, eq. 5.70.

    Raises:
        InvalidInput: an argument out of range.
    """
    utilisation = _offered(rate, service_s)
    number("service_scv", service_scv, low=0.0)
    if utilisation >= 1:
        return math.inf
    return utilisation * service_s * (1 + service_scv) / (2 * (1 - utilisation))


def g_g_c_wait(
    rate: float, service_s: float, servers: int, *, arrival_scv: float, service_scv: float
) -> float:
    """Return Allen and Cunneen's approximation of the mean wait before service in G/G/c.

    Exact for M/M/c and M/G/1; otherwise the wait of M/M/c times the mean of the two variations.

    Args:
        rate: arrivals per second, from 0.
        service_s: mean service time, above 0.
        servers: servers c, from 1.
        arrival_scv: squared coefficient of variation of the times between arrivals, from 0.
        service_scv: the same of service times, from 0.

    Source: Allen 1990, §5.5 (the Allen–Cunneen formula).

    Raises:
        InvalidInput: an argument out of range.
    """
    number("arrival_scv", arrival_scv, low=0.0)
    number("service_scv", service_scv, low=0.0)
    wait = m_m_c_wait(rate, service_s, servers)
    return wait if math.isinf(wait) else wait * (arrival_scv + service_scv) / 2


@dataclass(frozen=True)
class Station:
    """A station in balance."""

    in_system: float
    """Mean calls waiting or served; ``inf`` from saturation on."""
    response_s: float
    """Mean time from arrival to end, by Little's law; ``inf`` from saturation on."""
    busy: float
    """Probability that there is any call."""


def flow_equivalent(rate: float, throughputs: ArrayLike) -> Station:
    """Return what Poisson arrivals find at a station whose speed depends on how many are there.

    A whole system is such a station: measured closed, with n callers that ask again at once, it completes
    ``X(n)`` calls per second, which is the speed of the station with n calls inside, whatever waits, batches
    or shares a processor within. M/M/c is the case ``X(n) = min(n, c) / s``.

    Args:
        rate: arrivals per second, above 0.
        throughputs: vector [M] of X(1) to X(M), above 0; with more calls inside it stays X(M).

    Source: the flow-equivalent server of Chandy, Herzog & Woo 1975 (Lazowska et al. 1984, §8.3) in the
    birth–death process of Kleinrock 1975, eq. 3.11.

    Raises:
        InvalidInput: an argument out of range.
    """
    speeds = float_array("throughputs", throughputs, low=np.finfo(float).tiny)
    number("rate", rate, low=np.finfo(float).tiny)
    tail = rate / speeds[-1]
    if tail >= 1:
        return Station(math.inf, math.inf, 1.0)
    # Weights of 0 to M calls, in logarithms: M may be hundreds.
    logs = np.concatenate([[0.0], np.cumsum(np.log(rate) - np.log(speeds))])
    weights = np.exp(logs - logs.max())
    most = len(speeds)
    # With M calls or more each further one is `tail` times as likely: a geometric series.
    total = weights[:-1].sum() + weights[-1] / (1 - tail)
    inside = (np.arange(most) * weights[:-1]).sum() + weights[-1] * (
        most / (1 - tail) + tail / (1 - tail) ** 2
    )
    in_system = float(inside / total)
    return Station(in_system, in_system / rate, float(1 - weights[0] / total))


def throughput_curve(callers: ArrayLike, throughputs: ArrayLike) -> FloatArray:
    """Return X(1) to X(M) from throughputs measured with some numbers of callers.

    In between it is interpolated linearly, below the first it is in proportion to the callers.

    Args:
        callers: vector [P] of numbers of callers, rising, from 1.
        throughputs: vector [P] of what they completed per second, above 0.

    Returns:
        Vector [M], M the largest number of callers.

    Raises:
        InvalidInput: an argument out of range.
    """
    at = float_array("callers", callers, low=1.0)
    speeds = float_array("throughputs", throughputs, low=np.finfo(float).tiny)
    curve: FloatArray = np.interp(
        np.arange(1, round(at[-1]) + 1), np.concatenate([[0.0], at]), np.concatenate([[0.0], speeds])
    )
    return curve


def simulated_responses(
    arrivals: ArrayLike, services: ArrayLike, *, replicas: int, servers: int = 1
) -> FloatArray:
    """Return how long each call takes, by a simulation of events.

    Calls go to the replicas in turn, as gRPC's ``round_robin`` sends them. In a replica they wait in one
    queue, and the first in it goes to the server that is free first.

    Args:
        arrivals: vector [N] of the times of calls, not falling.
        services: vector [N] of their service times, or one time for all, above 0.
        replicas: replicas, from 1.
        servers: servers of each replica, from 1.

    Returns:
        Vector [N]: waiting and service time of each call.

    Source: the recursion of Kiefer & Wolfowitz (1955) for the waits in G/G/c.

    Raises:
        InvalidInput: an argument out of range, or of another length.
    """
    times = float_array("arrivals", arrivals)
    falls = np.flatnonzero(np.diff(times) < 0)
    if falls.size:
        first = int(falls[0]) + 1
        raise InvalidInput(f"arrivals[{first}]", float(times[first]), "not before the one that precedes it")
    given = np.asarray(services)
    each = np.full(len(times), given) if given.ndim == 0 else given
    lengths = float_array("services", each, low=np.finfo(float).tiny)
    same_length("arrivals", times, "services", lengths)
    free = [[-math.inf] * count("servers", servers) for _ in range(count("replicas", replicas))]
    responses = np.empty(len(times))
    for place, (arrival, length) in enumerate(zip(times.tolist(), lengths.tolist(), strict=True)):
        queue = free[place % replicas]
        end = max(arrival, queue[0]) + length
        heapq.heapreplace(queue, end)
        responses[place] = end - arrival
    return responses


def rate_at(response: Callable[[float], float], limit_s: float, highest: float) -> float:
    """Return the largest rate whose mean response is at most ``limit_s``.

    Args:
        response: mean response by rate, not falling; ``inf`` from saturation on.
        limit_s: the limit, above 0.
        highest: a rate that is too high, or the highest asked about.

    Returns:
        From 0, where even the least rate is too much, to ``highest``.

    Raises:
        InvalidInput: an argument out of range.
    """
    number("limit_s", limit_s, low=np.finfo(float).tiny)
    number("highest", highest, low=np.finfo(float).tiny)
    low, high = 0.0, highest
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if response(middle) <= limit_s else (low, middle)
    return low


def _offered(rate: float, service_s: float) -> float:
    number("rate", rate, low=0.0)
    number("service_s", service_s, low=np.finfo(float).tiny)
    return rate * service_s
