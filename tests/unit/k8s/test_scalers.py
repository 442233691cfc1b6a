"""What scalers ask Prometheus grows with the load, whatever computes the models."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from evenmesh_generator.settings import GeneratorSettings
from tests.support.manifests import build
from tests.support.programs import required

CAPACITY = Path(__file__).parents[3] / "docs" / "operate" / "capacity.md"
GENERATOR = 'instance="g:9464", namespace="evenmesh"'
OTHER = 'instance="h:9464", namespace="evenmesh"'
COMPUTES = {
    f'evenmesh_generator_requests_waiting{{{GENERATOR}, gen_ai_request_model="m"}}': 20,
    f'evenmesh_generator_requests_waiting{{{OTHER}, gen_ai_request_model="m"}}': 4,
    'evenmesh_generator_requests_waiting{instance="x:9464", namespace="another"}': 1000,
}
"""Two generators that compute, and one of another mesh."""
HANDS_ON = {
    # Both report the queue of the servers behind them.
    f'evenmesh_generator_requests_waiting{{{GENERATOR}, gen_ai_request_model="m"}}': 50,
    f'evenmesh_generator_requests_waiting{{{OTHER}, gen_ai_request_model="m"}}': 50,
    f"evenmesh_generator_places_held{{{GENERATOR}}}": 64,
    f"evenmesh_generator_places_held{{{OTHER}}}": 10,
    f"evenmesh_generator_places_waiting{{{GENERATOR}}}": 90,
    f"evenmesh_generator_places_waiting{{{OTHER}}}": 0,
    'evenmesh_generator_places_held{instance="x:9464", namespace="another"}': 1000,
}
"""Two generators in front of model servers, and one of another mesh."""


def queries(name: str) -> list[str]:
    triggers = build("prod").one("ScaledObject", name)["spec"]["triggers"]
    return [one["metadata"]["query"] for one in triggers]


def asked(series: dict[str, int], found: dict[str, int | None]) -> dict[str, Any]:
    """A test of promtool: what each query finds, None for nothing."""
    return {
        "interval": "1m",
        "input_series": [{"series": name, "values": str(value)} for name, value in series.items()],
        "promql_expr_test": [
            {
                "expr": query,
                "eval_time": "0m",
                "exp_samples": [] if value is None else [{"labels": "{}", "value": value}],
            }
            for query, value in found.items()
        ],
    }


@pytest.mark.parametrize(
    ("series", "generators", "servers"),
    [(COMPUTES, [24, None], [None]), (HANDS_ON, [None, 164], [164])],
    ids=["generators that compute", "generators that hand on"],
)
def test_scalers_see_what_waits(
    series: dict[str, int], generators: list[int | None], servers: list[int | None], tmp_path: Path
) -> None:
    found = dict(zip(queries("generator"), generators, strict=True))
    found |= dict(zip(queries("triton"), servers, strict=True))
    path = tmp_path / "test.yaml"
    path.write_text(yaml.safe_dump({"rule_files": [], "tests": [asked(series, found)]}))
    done = subprocess.run(
        [required("promtool"), "test", "rules", path], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_server_more_lets_generators_have_more_requests_running() -> None:
    """Otherwise a new pod would get none of those that wait, and would be taken away again."""
    (trigger,) = build("prod").one("ScaledObject", "triton")["spec"]["triggers"]
    assert (
        float(trigger["metadata"]["threshold"]) <= GeneratorSettings.model_fields["triton_in_flight"].default
    )
    service = build("prod").one("Service", "triton")["spec"]
    assert service["clusterIP"] == "None", "each generator resolves every server"
    assert not service.get("publishNotReadyAddresses"), "a server that ends is resolved no more"


@pytest.mark.parametrize("name", ["orchestrator", "gateway"])
def test_a_pod_takes_some_load_before_another_is_started(name: str) -> None:
    """A scaler by processor counts in what is requested: of too little, a handful of asks starts all pods."""
    measured = re.search(r"^\| orchestrator \| ([\d.]+) \| ms of a core", CAPACITY.read_text(), re.MULTILINE)
    assert measured is not None
    # Of the gateway 5.0 ms: docs/science/benchmarks.md, HTTP beside gRPC.
    seconds = float(measured[1]) / 1000 if name == "orchestrator" else 0.005
    built = build("prod")
    requested = built.workload(name).containers[0]["resources"]["requests"]["cpu"]
    (metric,) = built.one("HorizontalPodAutoscaler", name)["spec"]["metrics"]
    share = metric["resource"]["target"]["averageUtilization"] / 100
    assert share * int(requested.removesuffix("m")) / 1000 / seconds >= 25, "asks a second"
