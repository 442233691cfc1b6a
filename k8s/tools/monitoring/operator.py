"""The rule files as one object of the Prometheus operator."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import yaml

_HEAD: Final = """\
# Made from rules/ by `python -m k8s.tools.monitoring`; change them there.
"""


class _Dumper(yaml.SafeDumper):
    """Writes expressions as the blocks that they are in the rule files."""


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)


_Dumper.add_representer(str, _text)


def prometheus_rule(files: Sequence[Path]) -> str:
    """Return the PrometheusRule with all groups of these rule files, as YAML."""
    groups: list[Any] = []
    for path in files:
        groups += yaml.safe_load(path.read_text(encoding="utf-8"))["groups"]
    document = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "evenmesh", "labels": {"app.kubernetes.io/name": "evenmesh"}},
        "spec": {"groups": groups},
    }
    return _HEAD + yaml.dump(document, Dumper=_Dumper, sort_keys=False, width=120, allow_unicode=True)
