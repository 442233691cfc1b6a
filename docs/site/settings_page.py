"""The page of settings, from the settings classes and the docstrings of their fields."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path
from typing import Any, get_args

import griffe
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from evenmesh_kit.settings import ServiceSettings

ROOMS = {
    "evenmesh_orchestrator": "orchestrator",
    "evenmesh_retriever": "services/retriever",
    "evenmesh_reranker": "services/reranker",
    "evenmesh_generator": "services/generator",
    "evenmesh_evaluator": "services/evaluator",
    "evenmesh_gateway": "services/gateway",
    "evenmesh_training": "training",
}
"""Import names of the rooms that run a process, and their folders."""

INTRODUCTION = """# Settings

Every process reads its settings from environment variables when it starts, and checks them before it listens.
It reports all errors at once; each names the variable, its value and what is allowed. Lists and tables are
JSON unless the text says otherwise.

This page is generated from the settings classes; the table of clients and commands is written by hand.

## Clients and commands

The SDK and the `evenmesh` command read these.

| variable | default | meaning |
|---|---|---|
| `EVENMESH_CLIENT_<SERVICE>_TARGET` | the mesh that `evenmesh up` runs here, else ports 7070 to 7074 | \
Address of a service, `host:port`; `<SERVICE>` is `ORCHESTRATOR`, `RETRIEVER`, `RERANKER`, `GENERATOR` or \
`EVALUATOR`. |
| `EVENMESH_HOME` | your data folder | Folder of the mesh of this machine, with its data and addresses. |
| `EVENMESH_API_KEY` | – | API key to show with every call. |
| `EVENMESH_TOKEN_FILE` | – | File of a token to show instead; it is read at every call. |
| `EVENMESH_TLS_CA` | – | PEM file of the authorities to trust, or `system`; without it, no TLS. |
| `EVENMESH_TLS_CERT`, `EVENMESH_TLS_KEY` | – | Certificate and key for services that ask for one. |
| `EVENMESH_LEARN` | `false` | Whether `evenmesh up` also trains the reranker, as `--learn` does. |
| `EVENMESH_NO_GATEWAY` | `false` | Whether `evenmesh up` leaves out HTTP, as `--no-gateway` does. |
| `EVENMESH_FETCH_MODELS` | – | Models that `evenmesh fetch-models` fetches if none is named. |
| `EVENMESH_HARVEST_KEY` | – | Key of the endpoint that `evenmesh harvest --openai` talks to. |
| `EVENMESH_SHARED_DATA` | – | Folder of the data sets that studies and trainings name. |
| `EVENMESH_TRACEBACK` | – | Any text: commands print the Python trace of an unexpected error. |
"""


def page(root: Path) -> str:
    """Return all settings as Markdown: the shared ones, then those of each process."""
    for room, folder in ROOMS.items():
        for path in sorted((root / folder / room).rglob("settings.py")):
            importlib.import_module(".".join(path.relative_to(root / folder).with_suffix("").parts))
    lines = [INTRODUCTION, "## All services", ""]
    lines += ["`<SERVICE>` is the service's name: `RETRIEVER`, `RERANKER`, `GENERATOR`, …", ""]
    shared = dict(ServiceSettings.model_fields)
    lines += _table(ServiceSettings, "EVENMESH_<SERVICE>_", shared)
    leaves = dict.fromkeys(_leaves(ServiceSettings))  # a class of two bases is below both
    for one in sorted(leaves, key=lambda one: str(one.model_config.get("env_prefix"))):
        prefix = str(one.model_config.get("env_prefix", ""))
        if not one.__module__.startswith(tuple(ROOMS)):
            continue
        own = {
            name: field
            for name, field in one.model_fields.items()
            if name not in shared or _default(field) != _default(shared[name])
        }
        lines += ["", f"## {prefix.removeprefix('EVENMESH_').strip('_').capitalize()}", ""]
        lines += _table(one, prefix, own)
    return "\n".join(lines) + "\n"


def _leaves(base: type[ServiceSettings]) -> list[type[ServiceSettings]]:
    below = base.__subclasses__()
    return [leaf for one in below for leaf in ([one] if not one.__subclasses__() else _leaves(one))]


def _table(settings: type[ServiceSettings], prefix: str, fields: dict[str, FieldInfo]) -> list[str]:
    described = _descriptions(settings)
    lines = ["| variable | default | meaning |", "|---|---|---|"]
    for name, field in fields.items():
        alias = field.validation_alias
        variable = alias if isinstance(alias, str) else f"{prefix}{name.upper()}"
        choices = _choices(field.annotation)
        text = described.get(name, "") + (f" One of {choices}." if choices else "")
        lines.append(f"| `{variable}` | {_default(field)} | {_cell(text)} |")
    return lines


def _descriptions(settings: type[ServiceSettings]) -> dict[str, str]:
    """Return the docstring of every field, those of the bases included."""
    found: dict[str, str] = {}
    for one in reversed(settings.__mro__):
        if one.__module__.startswith("evenmesh"):
            path = Path(inspect.getfile(one))
            module = griffe.visit(one.__module__, filepath=path, code=path.read_text(encoding="utf-8"))
            for name, member in module[one.__name__].members.items():
                if member.docstring is not None:
                    found[name] = member.docstring.value
    return found


def _default(field: FieldInfo) -> str:
    if field.default_factory is not None:
        return "–" if field.default_factory in (dict, list, tuple) else "computed"
    if field.default is PydanticUndefined:
        return "required"
    if field.default is None or field.default in ("", (), {}):
        return "–"
    value = str(field.default).lower() if isinstance(field.default, bool) else field.default
    return f"`{value:,}`" if isinstance(value, int) and value > 9_999 else f"`{value}`"


def _choices(annotation: Any) -> str:
    values = [one or "(empty)" for one in get_args(annotation) if isinstance(one, str)]
    return ", ".join(f"`{one}`" for one in values) if values else ""


def _cell(text: str) -> str:
    text = re.sub(r"``(.+?)``", r"`\1`", " ".join(text.split()))
    text = re.sub(r":\w+:`~?([^`]+)`", r"`\1`", text)
    return re.sub(r"(?<!\\)\|", r"\\|", text)
