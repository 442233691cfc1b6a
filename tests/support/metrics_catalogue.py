"""The metrics that docs/operate/telemetry.md lists, as Prometheus names them, with their labels."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from evenmesh_generator.triton.python_models import metrics as triton

_PAGE: Final = Path(__file__).parents[2] / "docs" / "operate" / "telemetry.md"
_ROW: Final = re.compile(r"^\| `([a-z_.]+)`\*? \|[^|]*\| (\w+) \| ([^|]*) \| `(\w+)` \|", re.MULTILINE)
_CALL: Final = {"rpc_system", "rpc_service", "rpc_method", "rpc_grpc_status_code"}
_MODEL: Final = {"gen_ai_provider_name", "evenmesh_generator_engine"}


def catalogue() -> dict[str, set[str]]:
    """Labels of every series by name; a histogram is three."""
    found: dict[str, set[str]] = {}
    for _, kind, attributes, name in _ROW.findall(_PAGE.read_text(encoding="utf-8")):
        labels = {one.strip().replace(".", "_") for one in re.split(r"[,…]", attributes) if one.strip()}
        if "as above" in attributes:
            labels |= _CALL
        if "…" in attributes:
            labels |= _MODEL
        labels = {one for one in labels if " " not in one} | {"service_name"}
        if kind == "histogram":
            found[f"{name}_bucket"] = labels | {"le"}
            found[f"{name}_sum"] = found[f"{name}_count"] = labels
        else:
            found[name] = labels
    return found


def of_triton() -> dict[str, set[str]]:
    """What dashboards ask of Triton's own metrics: its names are NVIDIA's, ours are read from the models'."""
    ours = {f"{triton._PREFIX}{name}": {"model"} for name in triton._LEVELS}
    counts = {f"{triton._PREFIX}written_tokens_total": {"model"}}
    return {
        **ours,
        **counts,
        "nv_inference_queue_duration_us": {"model"},
        "nv_inference_request_success": {"model"},
    }


PROCESS: Final = {
    "up": set[str](),
    "process_cpu_seconds_total": set[str](),
    "process_resident_memory_bytes": set[str](),
    "process_open_fds": set[str](),
    "process_max_fds": set[str](),
    "process_start_time_seconds": set[str](),
}
"""Of Prometheus itself and of its client, in every process."""

OPERATORS: Final = {"evenmesh_fairness_target": {"tenant", "collection", "quantity", "bound"}}
"""What operators record themselves (docs/guides/fairness-targets.md)."""
