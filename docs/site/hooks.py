"""Hooks of the documentation site: generated pages, links out of docs/, formulas, no network.

mkdocs calls the functions named ``on_...``. Pages of the reference that have no file in docs/ are generated
from the protos, the settings, the command line, the docstrings and the bibliography.
"""

from __future__ import annotations

import html
import os
import re
import sys
from pathlib import Path
from typing import Any

import latex2mathml.converter
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE))

import commands_page  # noqa: E402 - the folder of this file is put on the path first
import notebook_pages  # noqa: E402
import protos_pages  # noqa: E402
import python_pages  # noqa: E402
import references_page  # noqa: E402
import settings_page  # noqa: E402

SHOWN = {
    "CHANGELOG.md": "decisions/changelog.md",
    "CONTRIBUTING.md": "decisions/contributing.md",
    "models/evenmesh_models/reader/MODEL_CARD.md": "reference/models/reader.md",
    "models/evenmesh_models/cross_encoder/MODEL_CARD.md": "reference/models/cross-encoder.md",
    "studies/evenmesh_studies/demo/README.md": "start/demo-corpus.md",
}
"""Files outside docs/ that the site shows, and where."""

_LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()\s]+)\)")
_FENCE = re.compile(r"^(```|~~~).*?^\1[ ]*$", re.MULTILINE | re.DOTALL)
_EXTERNAL = re.compile(r"^[a-z][a-z0-9+.-]*:|^//")
_FORMULAS = (
    (re.compile(r'<span class="arithmatex">\\\((.*?)\\\)</span>', re.DOTALL), "inline"),
    (re.compile(r'<div class="arithmatex">\s*\\\[(.*?)\\\]\s*</div>', re.DOTALL), "block"),
)
_LOADED = re.compile(
    r"<(?:script|img|iframe|source|video|audio)\b[^>]*\bsrc=\"((?:https?:)?//[^\"]+)"
    r"|<link\b(?=[^>]*\brel=\"(?:stylesheet|preload|preconnect|icon)\")[^>]*\bhref=\"((?:https?:)?//[^\"]+)"
)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Complete the navigation with the generated pages and the decisions."""
    generated = _generated()
    decisions = sorted(f"decisions/{path.name}" for path in (ROOT / "docs/decisions").glob("0*.md"))
    for section in config.nav or []:
        for name, items in section.items():
            if name == "Reference":
                for item in items:
                    if isinstance(item, dict):
                        for title, folder in item.items():
                            item[title] = sorted(path for path in generated if path.startswith(str(folder)))
                items.append(
                    {"Models": sorted(p for p in SHOWN.values() if p.startswith("reference/models/"))}
                )
            elif name == "Decisions":
                items += [*decisions, SHOWN["CONTRIBUTING.md"], SHOWN["CHANGELOG.md"]]
            elif name == "Start":
                items.append(SHOWN["studies/evenmesh_studies/demo/README.md"])
    return config


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the generated pages and the pages that stand outside docs/."""
    for path, text in _generated().items():
        files.append(File.generated(config, path, content=text))
    for source, (path, text, pictures) in notebook_pages.pages(ROOT).items():
        files.append(File.generated(config, path, content=_outside(text, source, path)))
        for name, data in pictures.items():
            files.append(File.generated(config, f"{notebook_pages.FOLDER}/{name}", content=data))
    for source, path in SHOWN.items():
        text = _without_front_matter((ROOT / source).read_text(encoding="utf-8"))
        files.append(File.generated(config, path, content=_outside(text, ROOT / source, path)))
        for picture in re.findall(r"!\[[^\]]*\]\(([\w./-]+)\)", text):
            shown = os.path.normpath(Path(path).parent / picture)
            files.append(
                File.generated(config, shown, abs_src_path=str(ROOT / Path(source).parent / picture))
            )
    return files


def on_page_markdown(markdown: str, *, page: Page, **_: Any) -> str:
    """Point links that leave docs/ at the page that shows the file, or print the file's name."""
    source = page.file.abs_src_path
    if source is None or not Path(source).is_relative_to(ROOT / "docs"):
        return markdown
    return _outside(markdown, Path(source), page.file.src_uri)


def on_page_content(content: str, *, page: Page, **_: Any) -> str:
    """Turn the TeX of formulas into MathML."""
    for pattern, display in _FORMULAS:
        content = pattern.sub(lambda match, display=display: _mathml(match[1], display, page), content)
    return content


def on_post_build(*, config: MkDocsConfig) -> None:
    """Fail when a page would load anything from another host."""
    wrong = [
        f"{path.relative_to(config.site_dir)} loads {found[0] or found[1]}"
        for path in sorted(Path(config.site_dir).rglob("*.html"))
        for found in _LOADED.findall(path.read_text(encoding="utf-8"))
    ]
    if wrong:
        raise PluginError("the site must work without the network:\n" + "\n".join(wrong))


_CACHE: dict[str, str] = {}


def _generated() -> dict[str, str]:
    """Return the text of every generated page by its path."""
    if not _CACHE:
        _CACHE.update(protos_pages.pages(ROOT))
        _CACHE.update(python_pages.pages(ROOT))
        _CACHE["reference/settings.md"] = settings_page.page(ROOT)
        _CACHE["reference/commands.md"] = commands_page.page()
        _CACHE["science/references.md"] = references_page.page(ROOT / "docs/references.bib")
    return _CACHE


def _without_front_matter(text: str) -> str:
    return re.sub(r"\A---\n.*?\n---\n", "", text, flags=re.DOTALL)


def _outside(markdown: str, source: Path, shown_as: str) -> str:
    """Rewrite links from a file of the repository whose target is no page of docs/."""
    docs = ROOT / "docs"

    def link(match: re.Match[str]) -> str:
        words, target = match[1], match[2]
        if _EXTERNAL.match(target) or target.startswith("#"):
            return match[0]
        path, _, anchor = target.partition("#")
        full = Path(os.path.normpath(source.parent / path))
        if not full.exists():
            generated = os.path.relpath(full, docs) if full.is_relative_to(docs) else ""
            if generated in _generated():
                return _to(words, generated, anchor, shown_as)
            return match[0]  # mkdocs reports it
        name = str(full.relative_to(ROOT))
        if full.suffix == ".ipynb":
            return _to(words, notebook_pages.page_of(full), anchor, shown_as)
        if name in SHOWN:
            return _to(words, SHOWN[name], anchor, shown_as)
        if full.is_relative_to(docs) and full.is_file():
            return _to(words, os.path.relpath(full, docs), anchor, shown_as)
        return words if words.startswith("`") or words == name else f"{words} (`{name}`)"

    parts: list[str] = []
    end = 0
    for fence in _FENCE.finditer(markdown):
        parts += [_LINK.sub(link, markdown[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*parts, _LINK.sub(link, markdown[end:])])


def _to(words: str, target: str, anchor: str, page: str) -> str:
    path = os.path.relpath(target, Path(page).parent)
    return f"[{words}]({path}{'#' + anchor if anchor else ''})"


def _mathml(tex: str, display: str, page: Page) -> str:
    text = html.unescape(tex).strip()
    try:
        found: Any = latex2mathml.converter.convert(text, display=display)
    except Exception as error:
        raise PluginError(f"{page.file.src_uri}: cannot read the formula {text!r}: {error}") from error
    return f'<div class="formula">{found}</div>' if display == "block" else str(found)
