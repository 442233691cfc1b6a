"""The metrics that docs/operate/telemetry.md lists, as Prometheus names them, with their labels."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from evenmesh_generator.triton.python_models import metrics as triton

_PAGE: Final = Path(__file__).parents[2] / "docs" / "operate" / "telemetry.md"
_ROW: Final = re.compile(r"^\| `[a-z_.]+`\*?<br>`(\w+)` \| (\w+)[^|]* \| ([^|]*)\|", re.MULTILINE)
_CALL: Final = {"rpc_system", "rpc_service", "rpc_method", "rpc_grpc_status_code", "evenmesh_deadline"}
_MODEL: Final = {"gen_ai_provider_name", "evenmesh_generator_engine"}


def catalogue() -> dict[str, set[str]]:
    """Labels of every series by name; a histogram is three."""
    found: dict[str, set[str]] = {}
    for name, kind, attributes in _ROW.findall(_PAGE.read_text(encoding="utf-8")):
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
_GPU: Final = {"gpu", "UUID", "modelName", "Hostname", "exported_namespace", "exported_pod"}
_VOLUME: Final = {"persistentvolumeclaim"}
CLUSTER: Final = {
    # NVIDIA's dcgm-exporter, as its default list of counters has them.
    "DCGM_FI_DEV_FB_USED": _GPU,
    "DCGM_FI_DEV_FB_FREE": _GPU,
    "DCGM_FI_DEV_XID_ERRORS": _GPU,
    # The kubelet.
    "kubelet_volume_stats_available_bytes": _VOLUME,
    "kubelet_volume_stats_capacity_bytes": _VOLUME,
    "kubelet_volume_stats_inodes_free": _VOLUME,
    "kubelet_volume_stats_inodes": _VOLUME,
    # kube-state-metrics.
    "kube_pod_container_resource_requests": {"uid", "node", "resource", "unit"},
    "kube_pod_status_unschedulable": {"uid"},
    "kube_pod_status_phase": {"uid", "phase"},
    "kube_pod_container_status_restarts_total": {"uid"},
    "kube_pod_container_status_last_terminated_reason": {"uid", "reason"},
    "kube_pod_container_status_terminated_reason": {"uid", "reason"},
    "kube_horizontalpodautoscaler_status_condition": {"horizontalpodautoscaler", "condition", "status"},
    "kube_cronjob_status_last_successful_time": {"cronjob"},
    "kube_cronjob_created": {"cronjob"},
    # KEDA's operator.
    "keda_scaler_detail_errors_total": {"metric", "scaledObject", "scaler", "triggerIndex", "type"}
    | {"exported_namespace"},
    # The black-box exporter of components/probe.
    "probe_success": set[str](),
    "probe_ssl_earliest_cert_expiry": set[str](),
}
"""What others export of the cluster and of the mesh, by their documentation; no test has scraped it here."""
MADE: Final = {"of"}
"""Labels that rules make themselves, by ``label_replace``."""
