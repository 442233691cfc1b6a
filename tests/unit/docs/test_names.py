"""What pages and other Markdown files name exists: links, modules, settings, commands, options and files."""

from __future__ import annotations

import ast
import functools
import importlib.util
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from evenmesh.commands import application
from tests.support.pages import blocks, commands, inline

ROOT = Path(__file__).parents[3]
SKIPPED = ("build", "node_modules", ".venv", ".pytest_cache")
"""Beginnings of folders' names that are not ours."""


def pages() -> Iterator[Path]:
    """Yield our pages; what is not ours, such as the packages of an environment, is not entered."""
    for folder, folders, files in os.walk(ROOT):
        folders[:] = [one for one in folders if not one.startswith(SKIPPED)]
        yield from ((Path(folder) / one).relative_to(ROOT) for one in files if one.endswith(".md"))


PAGES = sorted(pages())
HISTORY = {Path("CHANGELOG.md")}
"""Pages that name what once was."""

PROTOS = {
    f"{found[1]}.{name}"
    for path in sorted((ROOT / "protos").rglob("*.proto"))
    if (found := re.search(r"^package ([\w.]+);", text := path.read_text(encoding="utf-8"), re.MULTILINE))
    for names in re.findall(r"^\s*(?:service|message|enum) (\w+)|^extend [^}]+ (\w+) = ", text, re.MULTILINE)
    for name in names
    if name
}
GENERATED = re.compile(r"(?:^|/)(?:protos|python)/|(?:^|/)(?:settings|commands|references)\.md$")
"""Pages that are made when the site is built; the build checks links to them."""


@functools.cache
def text_of(page: Path) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def without_fences(text: str) -> str:
    return re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)


@functools.cache
def sources() -> str:
    """All of our Python, YAML and shell, as one text."""
    rooms = ("clients", "libs", "mesh", "models", "orchestrator", "services", "studies", "training")
    found = [
        path.read_text(encoding="utf-8")
        for room in (*rooms, "tests", "benchmarks", "k8s", "examples")
        for path in sorted((ROOT / room).rglob("*"))
        if path.suffix in (".py", ".yaml", ".toml") and path != Path(__file__)
    ]
    return "\n".join([*found, (ROOT / "Makefile").read_text(encoding="utf-8")])


@functools.cache
def in_sources(text: str) -> bool:
    """Whether our sources have a text, anywhere."""
    return text in sources()


@functools.cache
def indented() -> frozenset[str]:
    """Return the words that begin a line of our sources after four spaces, such as fields of settings."""
    return frozenset(re.findall(r"^    (\w+)", sources(), re.MULTILINE))


@functools.cache
def root_command() -> Any:
    """Return the whole command, made once."""
    return typer.main.get_command(application())


@functools.cache
def exists(name: str) -> bool:
    """Whether a dotted name is a module, or something that a module defines or imports."""
    parts = name.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            spec = importlib.util.find_spec(".".join(parts[:cut]))
        except (ImportError, ValueError):
            continue
        if spec is not None and (spec.origin or cut == len(parts)):
            rest = parts[cut:]
            stub = Path(str(spec.origin)).with_suffix(".pyi")  # lists what is loaded when it is first used
            return not rest or rest[0] in defined(str(spec.origin)) | (
                defined(str(stub)) if stub.exists() else frozenset()
            )
    return False


@functools.cache
def defined(path: str) -> frozenset[str]:
    """Return the names that a module or stub defines or imports."""
    names: set[str] = set()
    stub = Path(path).with_name("__init__.pyi")
    texts = [Path(path)] + ([stub] if Path(path).name == "__init__.py" and stub.exists() else [])
    nodes = [node for one in texts for node in ast.walk(ast.parse(one.read_text(encoding="utf-8")))]
    for node in nodes:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.ImportFrom | ast.Import):
            names |= {(one.asname or one.name).split(".")[0] for one in node.names}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return frozenset(names)


def dotted(text: str) -> Iterator[str]:
    for code in re.findall(r"`([^`\n]+)`", without_fences(text)):
        yield from re.findall(r"(?<![\w./-])(evenmesh(?:_[a-z]+)?(?:\.\w+)+)(?![\w/*-])", code)


def named_commands(text: str) -> Iterator[list[str]]:
    for block in (*blocks(text, "sh"), *blocks(text, "")):
        for line in block.splitlines():
            if re.match(r"^(?:\w+=\S+ )*evenmesh ", line):
                for words in commands(re.sub(r"\s#.*$", "", line).replace("…", "").rstrip("\\")):
                    yield [word for word in words if "=" not in word or word.startswith("-")]
    yield from inline(text, "evenmesh")


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_links_lead_to_files(page: Path) -> None:
    for target in re.findall(r"\]\(([^()\s]+)\)", without_fences(text_of(page))):
        path = target.partition("#")[0]
        if path and not re.match(r"[a-z]+:", path) and not GENERATED.search(path):
            assert (ROOT / page.parent / path).exists(), target


@pytest.mark.parametrize("page", [page for page in PAGES if page not in HISTORY], ids=str)
def test_dotted_names_exist(page: Path) -> None:
    for name in dotted(text_of(page)):
        message = any(name == known or name.startswith(f"{known}.") for known in PROTOS)
        package = any(known.startswith(f"{name}.") for known in PROTOS)
        metric = in_sources(f'"{name}') or f"`{name}" in text_of(Path("docs/operate/telemetry.md"))
        assert message or package or metric or exists(name), name


@pytest.mark.parametrize("page", [page for page in PAGES if page not in HISTORY], ids=str)
def test_what_examples_import_exists(page: Path) -> None:
    for block in blocks(text_of(page), "python"):
        if ">>>" in block:
            continue  # docs/science/metrics.md, whose examples run in a test of their own
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("evenmesh"):
                for one in node.names:
                    assert exists(f"{node.module}.{one.name}"), ast.unparse(node)
            elif isinstance(node, ast.Attribute) and ast.unparse(node.value) == "evenmesh":
                assert exists(ast.unparse(node)), ast.unparse(node)


@pytest.mark.parametrize("page", [page for page in PAGES if page not in HISTORY], ids=str)
def test_settings_exist(page: Path) -> None:
    text = text_of(page)
    for name in set(re.findall(r"\bEVENMESH_[A-Z][A-Z0-9_]*[A-Z0-9]\b(?!_?[<…*{])", text)):
        if not in_sources(name):
            service, _, field = name.removeprefix("EVENMESH_").partition("_")
            assert service.lower() in ("orchestrator", "retriever", "reranker", "generator", "evaluator", "gateway", "trainer",
                                       "triton", "client"), name  # fmt: skip
            assert not field or field.lower() in indented(), name


@pytest.mark.parametrize("page", [page for page in PAGES if page not in HISTORY], ids=str)
def test_commands_and_options_exist(page: Path) -> None:
    root = root_command()
    for words in named_commands(text_of(page)):
        command, rest = root, words[1:]
        while rest and hasattr(command, "commands") and not rest[0].startswith("-"):
            if not re.fullmatch(r"[a-z][a-z0-9-]*", rest[0]):
                break
            assert rest[0] in command.commands, words
            command, rest = command.commands[rest[0]], rest[1:]
        known = {option for one in command.params for option in (*one.opts, *one.secondary_opts)} | {
            "--help",
            "--version",
        }
        used = {word.split("=")[0] for word in rest if re.match(r"--?[a-zA-Z]", word)}
        assert used <= known, words


@pytest.mark.parametrize("page", [page for page in PAGES if page not in HISTORY], ids=str)
def test_files_of_the_repository_exist(page: Path) -> None:
    rooms = "clients|libs|mesh|models|orchestrator|services|studies|training|protos|tests|benchmarks|k8s|docs|examples"
    for path in re.findall(rf"`((?:{rooms})/[\w./-]*\w)(?:::\w+)?`", text_of(page)):
        if not any(part in path for part in ("overlays/mine", "models/repository", ".db")):
            assert (ROOT / path).exists(), path


def test_test_files_that_commands_and_docstrings_name_exist() -> None:
    listed = subprocess.run(
        ["git", "grep", "-hoE", r"\btests/[a-z0-9_/]+\.py\b", "--", "*.md", "*.py", "*.yaml", "Makefile"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert [name for name in sorted(set(listed.stdout.split())) if not (ROOT / name).exists()] == []


def test_every_page_of_the_decisions_has_a_status() -> None:
    for path in sorted((ROOT / "docs/decisions").glob("0*.md")):
        assert re.search(
            r"^Status: accepted, \d{4}-\d\d-\d\d", path.read_text(encoding="utf-8"), re.MULTILINE
        )


def test_the_readme_is_short() -> None:
    assert (ROOT / "README.md").stat().st_size <= 7_200
