"""Node, and what npm installed for the TypeScript client and the console: where they are, or why not."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from tests.support.programs import required

ROOT: Final = Path(__file__).parents[2]
CLIENT: Final = ROOT / "clients" / "typescript"
AXE: Final = ROOT / "console" / "node_modules" / "axe-core" / "axe.min.js"
ESBUILD: Final = ROOT / "console" / "node_modules" / ".bin" / "esbuild"


def node_with_client() -> str:
    """Return the path of Node; skip the test without it or without the compiled TypeScript client."""
    node = required("node")
    if not (CLIENT / "dist" / "index.js").is_file():
        pytest.skip("the TypeScript client is not compiled: make typescript-client")
    return node


def axe() -> Path:
    """Return the path of axe-core; skip the test without it."""
    if not AXE.is_file():
        pytest.skip("axe-core is not installed: npm ci in console/, which make console does")
    return AXE


def esbuild() -> str:
    """Return the path of esbuild, which bundles scripts; skip the test without it."""
    if not ESBUILD.is_file():
        pytest.skip("esbuild is not installed: npm ci in console/, which make console does")
    return str(ESBUILD)
