"""A reranker without a model starts without what models need."""

from __future__ import annotations

import subprocess
import sys


def test_a_reranker_without_a_model_imports_no_model_library() -> None:
    heavy = {"torch", "transformers", "scipy.optimize", "scipy.sparse"}
    code = f"import sys, evenmesh_reranker.__main__; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240)
    assert done.stdout.strip() == "[]", done.stderr
