"""Writes the dashboards and the PrometheusRule of k8s/components/monitoring."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from k8s.tools.monitoring.dashboards import DASHBOARDS
from k8s.tools.monitoring.operator import prometheus_rule

COMPONENT: Final = Path(__file__).parents[2] / "components" / "monitoring"


def made() -> dict[Path, str]:
    """Return what this writes: each file and its text."""
    texts = {
        COMPONENT / "dashboards" / f"{one.uid}.json": json.dumps(one.json(), indent=1, ensure_ascii=False)
        + "\n"
        for one in DASHBOARDS
    }
    rules = sorted((COMPONENT / "rules").glob("*.yaml"))
    return {**texts, COMPONENT / "prometheus-rule.yaml": prometheus_rule(rules)}


def main() -> None:
    """Write it."""
    for path, text in made().items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
