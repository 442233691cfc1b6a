"""Who held calls up."""

import os
import socket
import sys
import threading
import time
from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from evenmesh_kit.compute.thread_names import name_thread
from evenmesh_studies.load.resource_monitor import ResourceMonitor, ResourceUsage, bottleneck, scrape
from tests.support.scripted_http import HttpReply, HttpRequest, in_thread

FREE: dict[str, Any] = {
    "client_cpu_s": 1.0,
    "processes": 1,
    "elapsed_s": 10.0,
    "late_p99_ms": 1.0,
    "latency_p50_ms": 100.0,
    "kept_up": 1.0,
    "local": True,
}


def _machine(busy: float, **services: float) -> ResourceUsage:
    return ResourceUsage(10.0, 2, busy * 20, 0.0, services)


def test_a_client_that_computes_all_the_time_is_to_blame() -> None:
    assert bottleneck(_machine(0.9, generator=9.0), **FREE | {"client_cpu_s": 9.0})[0] == "client"
    # The same shared by three processes is no load for any of them.
    assert (
        bottleneck(_machine(0.9, generator=9.0), **FREE | {"client_cpu_s": 9.0, "processes": 3})[0]
        == "server"
    )


def test_a_client_that_sends_late_is_to_blame() -> None:
    found = bottleneck(_machine(0.5, generator=5.0), **FREE | {"client_cpu_s": 5.0, "late_p99_ms": 80.0})
    assert found[0] == "client"


def test_a_busy_machine_is_the_servers_if_the_services_made_it_busy() -> None:
    who, why = bottleneck(_machine(0.95, generator=15.0, retriever=2.5), **FREE)
    assert who == "server"
    assert "generator" in why


def test_a_thread_without_time_left_is_named_though_cores_are_free() -> None:
    usage = replace(
        _machine(0.55, reranker=9.9), threads_cpu_s={"reranker cross-encoder": 9.5, "generator engine": 0.3}
    )
    who, why = bottleneck(usage, **FREE)
    assert who == "server"
    assert "the thread reranker cross-encoder computed 95% of the time, 55% of the cores" in why
    half = replace(usage, threads_cpu_s={"reranker cross-encoder": 5.0})
    assert bottleneck(half, **FREE)[0] == "none"
    busy = replace(_machine(0.95, reranker=17.0), threads_cpu_s={"reranker cross-encoder": 9.5})
    assert "95% of one in the thread reranker cross-encoder" in bottleneck(busy, **FREE)[1]


def test_a_queue_in_which_calls_wait_is_named() -> None:
    work = {
        'generator evenmesh_generator_queue_duration_seconds_sum{model="a"}': 12.0,
        'generator evenmesh_generator_queue_duration_seconds_sum{model="b"}': 3.0,
        "orchestrator evenmesh_admission_wait_duration_seconds_sum": 2.0,
        "generator evenmesh_generator_queue_duration_seconds_count": 900.0,
    }
    who, why = bottleneck(replace(_machine(0.3, generator=2.0), work=work), **FREE)
    # 15 s of waits in 10 s: one and a half calls waited at any time.
    assert (who, why) == (
        "server",
        "1.5 calls waited in generator evenmesh_generator_queue_duration_seconds on average",
    )
    short = {name: value / 10 for name, value in work.items()}
    assert bottleneck(replace(_machine(0.3, generator=2.0), work=short), **FREE)[0] == "none"


@pytest.mark.skipif(sys.platform != "linux", reason="threads have names on Linux alone")
def test_the_busiest_thread_is_found_by_its_name() -> None:
    computed, stop = threading.Event(), threading.Event()

    def compute() -> None:
        name_thread()
        while time.thread_time() < 0.3:
            sum(range(1000))
        computed.set()
        stop.wait()

    monitor = ResourceMonitor({"me": os.getpid()})
    thread = threading.Thread(target=compute, name="busy-one")
    monitor.begin(0.0)
    thread.start()
    computed.wait()
    found = monitor.end(1.0)
    stop.set()
    thread.join()
    name, share = found.busiest_thread
    assert name == "me busy-one"
    assert share >= 0.2  # the system counts in hundredths of a second


def test_neighbours_are_seen() -> None:
    # 19 of 20 seconds computed, of them 3 by the services and 1 by the client.
    usage = _machine(0.95, generator=3.0)
    assert usage.others_share(1.0) == pytest.approx((19 - 3 - 1) / 20)
    assert bottleneck(usage, **FREE)[0] == "neighbours"


def test_a_mesh_elsewhere_that_falls_behind_is_to_blame() -> None:
    assert bottleneck(_machine(0.06), **FREE | {"local": False, "kept_up": 0.5})[0] == "server"
    assert bottleneck(_machine(0.06), **FREE | {"local": False})[0] == "none"


def test_this_process_is_seen_to_compute() -> None:
    monitor = ResourceMonitor({"me": os.getpid(), "gone": 2**22 - 1})
    monitor.begin(0.0)
    sum(number * number for number in range(3_000_000))
    found = monitor.end(1.0)
    assert found.services_cpu_s["me"] > 0
    assert "gone" not in found.services_cpu_s
    assert found.machine_cpu_s >= 0


def test_counters_are_reported_by_increment_and_gauges_by_value() -> None:
    counts = count(5, 5)

    async def metrics(_: HttpRequest, reply: HttpReply) -> None:
        await reply.send(
            200, f'# HELP x\nwork_total{{kind="a"}} {next(counts)}\nqueue 7\nx_bucket{{le="1"}} 3\n'
        )

    with in_thread(metrics) as server:
        address = f"{server.origin}/metrics"
        monitor = ResourceMonitor({}, {"generator": address})
        monitor.begin(0.0)
        found = monitor.end(1.0)
        assert found.work == {'generator work_total{kind="a"}': 5.0, "generator queue": 7.0}
    assert scrape(address) == {}


def test_who_speaks_no_http_tells_nothing() -> None:
    assert scrape("http://[nowhere/metrics") == {}
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(1024)
                connection.sendall(b"\x00\x00\x06\x04")  # HTTP/2, as a port of gRPC

        thread = threading.Thread(target=answer)
        thread.start()
        assert scrape(f"http://127.0.0.1:{listening.getsockname()[1]}/metrics") == {}
        thread.join()
