import json
import subprocess
import sys

PROBE = """
import importlib, json, pkgutil, sys
import evenmesh_core
# `compiled` is the one module that needs numba; it is imported by whoever asks for that engine.
for module in pkgutil.walk_packages(evenmesh_core.__path__, "evenmesh_core."):
    if module.name != "evenmesh_core.plackett_luce.compiled":
        importlib.import_module(module.name)
print(json.dumps(sorted({name.split(".")[0] for name in sys.modules})))
"""


def test_the_science_imports_neither_the_wire_nor_slow_packages():
    output = subprocess.run([sys.executable, "-c", PROBE], check=True, capture_output=True, text=True).stdout
    imported = set(json.loads(output))
    assert "evenmesh_core" in imported
    wire = {
        "grpc",
        "google",
        "opentelemetry",
        "torch",
        "evenmesh",
        "evenmesh_kit",
        "evenmesh_retriever",
        "evenmesh_orchestrator",
    }
    assert not imported & wire
    slow = {
        "numba",
        "rouge_score",
        "nltk",
        "ir_measures",
        "pytrec_eval",
        "pandas",
        "matplotlib",
        "transformers",
    }
    assert not imported & slow
