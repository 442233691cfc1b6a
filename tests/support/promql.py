"""What PromQL expressions ask for: names of metrics, and labels that they select or group by."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

_WORDS: Final = {"and", "or", "unless", "bool", "offset", "inf", "nan"}
_GROUPING: Final = r"\b(by|without|on|ignoring|group_left|group_right)\s*\(([^()]*)\)"
_NAME: Final = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
ADDED: Final = {
    "job",
    "instance",
    "namespace",
    "pod",
    "container",
    "endpoint",
    "alertname",
    "alertstate",
    "severity",
}
"""Labels that Prometheus gives, and not what is scraped."""


@dataclass(frozen=True)
class QueriedMetrics:
    """What an expression asks for.

    Attributes:
        metrics: names.
        labels: names of labels that are selected by, by metric.
        groups: names of labels that results are grouped or joined by.
    """

    metrics: frozenset[str]
    labels: Mapping[str, frozenset[str]]
    groups: frozenset[str]


def asked(expression: str) -> QueriedMetrics:
    """What an expression asks for."""
    text = re.sub(r"#.*", "", expression)
    text = re.sub(r'"(?:[^"\\]|\\.)*"', '""', text)
    groups = {
        name.strip() for _, names in re.findall(_GROUPING, text) for name in names.split(",") if name.strip()
    }
    text = re.sub(_GROUPING, " ", text)
    text = re.sub(r"\[[^\]]*\]", " ", text)
    labels: dict[str, set[str]] = {}
    for name, selector in re.findall(
        rf"(?<![\w.])({_NAME})\s*(\{{[^}}]*\}})?(?!\s*\()(?![a-zA-Z0-9_:])", text
    ):
        if name in _WORDS or re.fullmatch(r"[smhdwy]|ms", name):
            continue
        labels.setdefault(name, set()).update(re.findall(rf"({_NAME})\s*(?:=~|!~|!=|=)", selector))
    return QueriedMetrics(
        frozenset(labels), {name: frozenset(ones) for name, ones in labels.items()}, frozenset(groups)
    )
