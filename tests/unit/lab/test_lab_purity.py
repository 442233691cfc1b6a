import json
import subprocess
import sys

PROBE = """
import json, sys
from evenmesh_lab import files, studies, reports
print(json.dumps(sorted({name.split(".")[0] for name in sys.modules})))
"""


def test_the_laboratory_needs_no_wire_and_loads_slow_packages_only_when_used():
    output = subprocess.run([sys.executable, "-c", PROBE], check=True, capture_output=True, text=True).stdout
    imported = set(json.loads(output))
    assert "evenmesh_lab" in imported
    assert not imported & {
        "grpc",
        "google",
        "opentelemetry",
        "evenmesh",
        "evenmesh_kit",
        "evenmesh_retriever",
        "evenmesh_orchestrator",
    }
    assert not imported & {
        "matplotlib",
        "pyarrow",
        "jinja2",
        "torch",
        "transformers",
        "sentence_transformers",
    }
