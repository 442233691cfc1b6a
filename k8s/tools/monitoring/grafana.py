"""Grafana dashboards as data: rows of panels, each with its queries, and the JSON that Grafana reads.

The JSON is of schema version 39 (Grafana 10.4 and 11; later ones bring it up to date when they load it).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

SCHEMA_VERSION: Final = 39
_WIDTH: Final = 24
_HEIGHT: Final = 8
_SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
HERE: Final = "$here"
"""Stands in queries for the labels of the mesh that is looked at."""
_HERE_LABELS: Final = 'namespace=~"$namespace"'


@dataclass(frozen=True, slots=True)
class Query:
    """One PromQL expression; ``legend`` is Grafana's template of a line's name."""

    expr: str
    legend: str = ""


@dataclass(frozen=True, slots=True)
class Panel:
    """One picture.

    Attributes:
        title: above it.
        description: what it shows, and what is good or bad.
        unit: Grafana's id of the unit of its values.
        queries: what is drawn.
        kind: ``timeseries``, ``stat`` or ``table``.
        width: columns of 24.
        stacked: whether lines are areas upon each other.
        lines: values at which a line is drawn: (value, colour).
        most: end of the axis; None where values have no bound.
    """

    title: str
    description: str
    unit: str
    queries: Sequence[Query]
    kind: str = "timeseries"
    width: int = 8
    stacked: bool = False
    lines: Sequence[tuple[float, str]] = ()
    most: float | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """Panels under a title; they flow from left to right."""

    title: str
    panels: Sequence[Panel]


@dataclass(frozen=True, slots=True)
class Dashboard:
    """All of one page.

    Attributes:
        uid: its id, the same in every Grafana; also the name of its file.
        title: its name.
        description: what it is for.
        rows: from top to bottom.
        choices: more variables than source and namespace: (name, label, query).
    """

    uid: str
    title: str
    description: str
    rows: Sequence[Row]
    choices: Sequence[tuple[str, str, str]] = ()

    def json(self) -> dict[str, Any]:
        """Return the document that Grafana reads."""
        return {
            "uid": self.uid,
            "title": self.title,
            "description": self.description,
            "tags": ["evenmesh"],
            "schemaVersion": SCHEMA_VERSION,
            "version": 1,
            "editable": True,
            "graphTooltip": 1,
            "refresh": "30s",
            "time": {"from": "now-6h", "to": "now"},
            "timepicker": {},
            "timezone": "",
            "links": [
                {
                    "type": "dashboards",
                    "title": "evenmesh",
                    "tags": ["evenmesh"],
                    "asDropdown": False,
                    "includeVars": True,
                    "keepTime": True,
                    "targetBlank": False,
                    "icon": "external link",
                    "tooltip": "",
                    "url": "",
                }
            ],
            "annotations": {"list": [_ALERTS]},
            "templating": {"list": [_SOURCES, *(_choice(*one) for one in (_NAMESPACE, *self.choices))]},
            "panels": _laid_out(self.rows),
        }


_NAMESPACE: Final = ("namespace", "Namespace", 'label_values(up{job="orchestrator"}, namespace)')
_SOURCES: Final = {
    "type": "datasource",
    "name": "datasource",
    "label": "Prometheus",
    "query": "prometheus",
    "current": {},
    "hide": 0,
    "includeAll": False,
    "multi": False,
    "options": [],
    "refresh": 1,
    "regex": "",
    "skipUrlSync": False,
}
_ALERTS: Final = {
    "name": "Alerts",
    "datasource": _SOURCE,
    "enable": True,
    "hide": False,
    "iconColor": "red",
    "expr": 'ALERTS{alertname=~"Evenmesh.+", alertstate="firing"}',
    "titleFormat": "{{alertname}}",
    "textFormat": "{{severity}} {{service_name}}{{job}} {{collection}}",
}


def _choice(name: str, label: str, query: str) -> dict[str, Any]:
    # All is .* rather than a list of what there is: outside Kubernetes nothing has a namespace.
    return {
        "type": "query",
        "name": name,
        "label": label,
        "datasource": _SOURCE,
        "definition": query,
        "query": {"query": query, "refId": "StandardVariableQuery"},
        "current": {"selected": True, "text": "All", "value": "$__all"},
        "allValue": ".*",
        "includeAll": True,
        "multi": False,
        "hide": 0,
        "options": [],
        "refresh": 2,
        "regex": "",
        "skipUrlSync": False,
        "sort": 1,
    }


def _laid_out(rows: Sequence[Row]) -> list[dict[str, Any]]:
    panels: list[dict[str, Any]] = []
    top = 0
    for row in rows:
        panels.append(
            {
                "id": len(panels) + 1,
                "type": "row",
                "title": row.title,
                "collapsed": False,
                "gridPos": {"h": 1, "w": _WIDTH, "x": 0, "y": top},
                "panels": [],
            }
        )
        top, left = top + 1, 0
        for panel in row.panels:
            if left + panel.width > _WIDTH:
                top, left = top + _HEIGHT, 0
            place = {"h": _HEIGHT, "w": panel.width, "x": left, "y": top}
            panels.append({"id": len(panels) + 1, "gridPos": place, **_drawn(panel)})
            left += panel.width
        top += _HEIGHT
    return panels


def _drawn(panel: Panel) -> dict[str, Any]:
    defaults: dict[str, Any] = {"unit": panel.unit, "thresholds": _thresholds(panel.lines)}
    if panel.most is not None:
        defaults |= {"min": 0, "max": panel.most}
    options: dict[str, Any] = {}
    if panel.kind == "timeseries":
        defaults["custom"] = {
            "drawStyle": "line",
            "fillOpacity": 30 if panel.stacked else 5,
            "lineWidth": 1,
            "showPoints": "never",
            "spanNulls": False,
            "stacking": {"group": "A", "mode": "normal" if panel.stacked else "none"},
            "thresholdsStyle": {"mode": "line" if panel.lines else "off"},
        }
        options = {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []},
            "tooltip": {"mode": "multi", "sort": "desc"},
        }
    elif panel.kind == "stat":
        options = {
            "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
            "colorMode": "value",
            "graphMode": "none",
            "justifyMode": "auto",
            "orientation": "auto",
            "textMode": "auto",
        }
    else:
        options = {"showHeader": True, "cellHeight": "sm", "footer": {"show": False, "reducer": ["sum"]}}
    return {
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": _SOURCE,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": options,
        "targets": [_target(panel, place, query) for place, query in enumerate(panel.queries)],
    }


def _thresholds(lines: Sequence[tuple[float, str]]) -> dict[str, Any]:
    steps: list[dict[str, Any]] = [{"color": "green", "value": None}]
    return {
        "mode": "absolute",
        "steps": steps + [{"color": colour, "value": value} for value, colour in lines],
    }


def _target(panel: Panel, place: int, query: Query) -> dict[str, Any]:
    of_now = panel.kind != "timeseries"
    return {
        "refId": chr(ord("A") + place),
        "datasource": _SOURCE,
        "editorMode": "code",
        "expr": query.expr.replace(HERE, _HERE_LABELS),
        "legendFormat": query.legend or "__auto",
        "range": not of_now,
        "instant": of_now,
        "format": "table" if panel.kind == "table" else "time_series",
        "exemplar": "_bucket" in query.expr and not of_now,
    }
