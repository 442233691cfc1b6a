"""What the forks of :mod:`tests.support.forked` have imported: what services and commands import at their start."""

from __future__ import annotations

import importlib
import os
from contextlib import suppress

os.environ["HF_HUB_OFFLINE"] = "1"  # read when it is imported

from evenmesh_kit.compute import openvino_runtime
from evenmesh_kit.compute.cpu_engine import EngineError

for _name in (
    *(f"evenmesh_{service}.__main__" for service in ("evaluator", "generator", "orchestrator", "reranker")),
    "evenmesh.commands",
    "evenmesh_gateway.__main__",
    "evenmesh_retriever.__main__",
    "evenmesh_generator.hosts.in_process",
    "evenmesh_reranker.backends.compiled_encoder",
    "evenmesh_retriever.backends.dense.compiled_encoder",
):
    importlib.import_module(_name)
with suppress(EngineError):
    openvino_runtime.package()
