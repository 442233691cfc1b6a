"""What a load needs."""

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenmesh_studies.load.analysis.capacity import (
    Assumptions,
    Demand,
    capacity_tables,
    gpu_seconds,
    measured_demand,
    needs,
    planned_share,
)
from evenmesh_studies.load.reporting.page import fill

DEMAND = Demand({"generator": 0.4, "orchestrator": 0.01}, 2, 2.0, 2.1, 4.0, 0.5, 1.0, 100, 900.0, 8.0, "here")


@given(st.floats(0, 5))
def test_one_server_waits_as_long_as_it_serves_at_two_of_three_and_its_variation(scv: float) -> None:
    # ρ·(1 + scv) / (2·(1 − ρ)) = 1.
    assert planned_share(1, scv) == pytest.approx(2 / (3 + scv))


@given(st.integers(1, 32))
def test_more_servers_of_one_queue_may_be_busier(servers: int) -> None:
    assert planned_share(servers + 1, 1.0) > planned_share(servers, 1.0)


def test_seconds_of_a_gpu_by_hand() -> None:
    given = Assumptions(
        gpu_flops=1e12,
        gpu_prefill_share=0.5,
        gpu_bytes_per_s=1e12,
        gpu_decode_share=0.5,
        gpu_batch=10,
        weight_bytes=2.0,
        tokens_per_pair=200.0,
    )
    found = gpu_seconds(DEMAND, given, 1e9)
    # 100 pairs of 200 tokens, two operations a parameter, at half of 1e12 a second.
    assert found["reranker"] == pytest.approx(100 * 200 * 2 * 1e9 / 0.5e12)
    # 900 tokens read the same way; 8 written, each reading 2 GB at half of 1e12 a second, for ten at once.
    assert found["generator"] == pytest.approx(900 * 2 * 1e9 / 0.5e12 + 8 * 2e9 / 0.5e12 / 10)


def test_needs_by_hand() -> None:
    given = Assumptions(pod_cores=1, spare_pods=1, index_passages=10e6, search_ms_per_million=3, shard_ms=10)
    (found,) = needs(DEMAND, given, [10.0])
    # Exponential service: half busy. 10/s · 0.4 s / 0.5 = 8 cores.
    assert found.cores["generator"] == pytest.approx(10 * 0.4 / 0.5)
    assert found.pods == {"generator": 8 + 1, "orchestrator": 1 + 1}
    # 30 ms to search all of it, 10 in a shard; each shard is 10 ms · 10/s / 0.5 = 0.2 busy.
    assert (found.shards, found.shard_replicas) == (3, 1 + 1)


@given(st.floats(0.1, 1e5), st.floats(1.0, 3.0))
def test_more_asks_never_need_less(rate: float, more: float) -> None:
    less, much = needs(DEMAND, Assumptions(), [rate, rate * more])
    assert sum(much.pods.values()) >= sum(less.pods.values())
    assert all(much.gpus_large[name] >= less.gpus_large[name] for name in less.gpus_large)


def test_assumptions_are_read_with_all_their_problems(tmp_path: Path) -> None:
    path = tmp_path / "assumptions.toml"
    path.write_text("gpu_batch = 8\nspare_pods = 0\n", encoding="utf-8")
    assert Assumptions.read(path) == (Assumptions(gpu_batch=8, spare_pods=0), [])
    path.write_text('gpu_batch = 0\nwrong = 1\npod_cores = "two"\n', encoding="utf-8")
    assert len(Assumptions.read(path)[1]) == 3
    path.write_text("=", encoding="utf-8")
    assert len(Assumptions.read(path)[1]) == 1


def _report() -> dict[str, Any]:
    step = {
        "kind": "closed",
        "completed_per_s": 4.0,
        "elapsed_s": 10.0,
        "usage": {"services_cpu_s": {"generator": 16.0}, "cores": 2},
        "quantities": {"prompt_tokens": {"mean": 900.0}},
    }
    return {
        "way": "ramp",
        "settings": {"operation": "ask", "n": 100},
        "steps": [step],
        "service_times": {"service_s": 0.5, "service_scv": 0.25},
        "knee": {"rate": 2.0, "reached": True},
        "predicted": [{"knee": 2.2}],
        "facts": {"machine": "m", "date": "d"},
    }


def test_the_demand_of_a_report() -> None:
    found = measured_demand(_report())
    assert found.cpu_s == {"generator": pytest.approx(16 / (4 * 10))}
    assert (found.knee, found.predicted, found.saturation) == (2.0, 2.2, 4.0)
    assert (found.read_tokens, found.written_tokens) == (900.0, 0.0)
    titles = [
        table.title for table in capacity_tables(found, Assumptions(), needs(found, Assumptions(), [10]))
    ]
    assert len(titles) == len(set(titles)) == 4


@pytest.mark.parametrize("broken", ["way", "operation", "cpu", "times"])
def test_a_report_of_something_else_is_refused(broken: str) -> None:
    report = _report()
    if broken == "way":
        report["way"] = "sweep"
    elif broken == "operation":
        report["settings"]["operation"] = "rerank"
    elif broken == "cpu":
        report["steps"][0]["usage"]["services_cpu_s"] = {}
    else:
        report["service_times"] = None
    with pytest.raises(ValueError, match=r"ramp|processor times|callers"):
        measured_demand(report)


@pytest.mark.parametrize("report", [[], {"way": "ramp", "settings": {"operation": "ask"}}])
def test_what_is_no_report_is_refused(report: Any) -> None:
    with pytest.raises(ValueError, match="is not a report of evenmesh bench"):
        measured_demand(report)


def test_a_page_is_filled_between_its_marks_and_nowhere_else(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text("a\n<!-- x -->\nold\n<!-- /x -->\nb\n", encoding="utf-8")
    fill(path, "x", r"new \1")
    fill(path, "x", r"new \1")
    assert path.read_text(encoding="utf-8") == "a\n<!-- x -->\n\nnew \\1\n\n<!-- /x -->\nb\n"
    with pytest.raises(ValueError, match="no marks"):
        fill(path, "y", "")


def test_shards_hold_what_fits_a_pod() -> None:
    given = Assumptions(index_passages=1e6, index_bytes_per_passage=1000, shard_bytes=4e8, shard_ms=1e6)
    assert needs(DEMAND, given, [1.0])[0].shards == math.ceil(1e9 / 4e8)
