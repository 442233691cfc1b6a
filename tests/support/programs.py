"""Programs that tests need and that pip does not install: where they are, or which package brings them."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from collections.abc import Iterable
from typing import Final

import pytest

PACKAGES: Final = {
    "chromium": "chromium",
    "go": "golang-go",
    "initdb": "postgresql",
    "kubectl": "kubernetes-client",
    "node": "nodejs",
    "postgres": "postgresql",
    "prometheus": "prometheus",
    "prometheus-blackbox-exporter": "prometheus-blackbox-exporter",
    "promtool": "prometheus",
    "protoc-gen-go": "protoc-gen-go",
    "protoc-gen-go-grpc": "protoc-gen-go-grpc",
    "psql": "postgresql-client",
    "redis-server": "redis-server",
    "setpriv": "util-linux",
}
"""Debian's package by program."""

_REASON: Final = re.compile(r"comes with Debian's package (\S+)")


def required(name: str) -> str:
    """Return the path of a program; skip the test where it is not installed."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed: it comes with Debian's package {PACKAGES[name]}")
    return found


def moto() -> str:
    """Return the program that serves S3 for tests; skip the test where it is not installed.

    It needs botocore, which does not go with the python-dateutil that the rest is tested with: it is
    installed apart, such as by ``pipx install 'moto[s3,server]'``.
    """
    found = shutil.which("moto_server")
    if found is None:
        pytest.skip("moto_server is not installed: pipx install 'moto[s3,server]'")
    return found


def s3rver() -> str:
    """Return the program that serves S3 with uploads in parts; skip the test where it is not installed."""
    found = shutil.which("s3rver")
    if found is None:
        pytest.skip("s3rver is not installed: npm install --global s3rver")
    return found


def missing(reasons: Iterable[str]) -> str:
    """Return one line that says how many tests were skipped for want of which packages; empty for none.

    Args:
        reasons: why tests were skipped, one for each.
    """
    counts = Counter(match[1] for reason in reasons if (match := _REASON.search(reason)))
    needs = ", ".join(f"{count} for want of {package}" for package, count in sorted(counts.items()))
    return f"skipped: {needs}; install with: apt-get install {' '.join(sorted(counts))}" if needs else ""
