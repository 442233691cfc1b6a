"""Pages of the Python interfaces: directives for mkdocstrings, which reads the source and imports nothing."""

from __future__ import annotations

from pathlib import Path

SDK = {
    "evenmesh._sync.client": ("Client", ".Client"),
    "evenmesh._async.client": ("AsyncClient", ".AsyncClient"),
    "evenmesh._sync.conversation": ("Conversations", ""),
    "evenmesh.local_mesh": ("A mesh of this machine", ""),
    "evenmesh.wire.errors": ("Errors", ""),
}
"""Modules of the SDK: the title of their page, and what of the module it shows."""

DOCUMENTS = ("document", "source", "splitting", "counting", "limits", "attribution", "duplicates")
"""Modules of the library of documents that programs use."""

_PAGE = """---
title: {short}
---

# {title}

::: {module}
    options:
      show_root_heading: false
      show_root_toc_entry: false
      inherited_members: true
"""


def pages(root: Path) -> dict[str, str]:
    """Return a page for each module of the client's interface, the core library and that of documents."""
    found = {
        f"reference/python/client/{title.lower().replace(' ', '_')}.md": _page(title, name + shown)
        for name, (title, shown) in SDK.items()
        if (root / "clients/python" / name.replace(".", "/")).with_suffix(".py").exists()
        or (root / "clients/python" / name.replace(".", "/")).is_dir()
    }
    for path in _modules(root / "clients/python/evenmesh/types"):
        name = f"evenmesh.types.{path.stem}"
        found[f"reference/python/client/types_{path.stem}.md"] = _page(name, name)
    core = root / "libs/core/evenmesh_core"
    for path in [*_modules(core), *sorted(core.glob("*/[!_]*.py"))]:
        parts = path.relative_to(core).with_suffix("").parts
        name = ".".join(("evenmesh_core", *parts))
        found[f"reference/python/core/{'_'.join(parts)}.md"] = _page(name, name)
    for module in DOCUMENTS:
        found[f"reference/python/documents/{module}.md"] = _page(module, f"evenmesh_documents.{module}")
    return found


def _modules(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*.py") if not path.name.startswith("_"))


def _page(title: str, module: str) -> str:
    short = title.removeprefix("evenmesh_core.").removeprefix("evenmesh.")  # the navigation cuts long titles
    return _PAGE.format(title=title, short=short, module=module)
