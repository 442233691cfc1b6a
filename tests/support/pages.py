"""Commands that pages of the documentation tell a reader to type, and whether they exist."""

from __future__ import annotations

import functools
import re
import shlex
import subprocess
from collections.abc import Iterator
from typing import Final

import typer

from evenmesh.commands import application
from tests.support.programs import required

_OPERATORS: Final = {"|", "&", ";", ">", "&&"}


def blocks(page: str, language: str = "sh") -> list[str]:
    """The fenced blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", page, re.MULTILINE | re.DOTALL)


def section(page: str, title: str) -> str:
    """The text below one heading, up to the next heading that is not below it."""
    found = re.search(rf"^(##+) {re.escape(title)}$\n(.*)", page, re.MULTILINE | re.DOTALL)
    assert found, title
    return re.split(rf"^##{{1,{len(found[1]) - 1}}} ", found[2], maxsplit=1, flags=re.MULTILINE)[0]


def inline(page: str, *programs: str) -> Iterator[list[str]]:
    """Commands in the middle of a sentence, in backticks."""
    for code in re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", page, flags=re.MULTILINE | re.DOTALL)):
        if code.split()[0] in programs and " " in code:
            yield from commands(code)


def commands(block: str) -> list[list[str]]:
    """Simple commands of a block, as words; those in $(…) too, loops by their bodies."""
    found: list[list[str]] = []
    for line in block.replace("\\\n", " ").splitlines():
        for inner in re.findall(r"\$\(([^()]*)\)", line):
            found += commands(inner)
        lexer = shlex.shlex(re.sub(r"\$\([^()]*\)", "X", line), posix=True, punctuation_chars="|&;>")
        lexer.whitespace_split = True
        words: list[str] = []
        for word in [*lexer, ";"]:
            if word == ">":
                words.append(word)
            elif word in _OPERATORS:
                found.append(words)
                words = []
            else:
                words.append(word)
    return [one for one in map(_bare, found) if one]


def _bare(words: list[str]) -> list[str]:
    if words[:1] in (["for"], ["done"], ["export"], ["unset"]):
        return []
    words = words[1:] if words[:1] == ["do"] else words
    return words[: words.index(">")] if ">" in words else words


def assert_kubectl_has(words: list[str]) -> None:
    """Whether kubectl has a command, without its own name, and its options; skips without kubectl."""
    known = _options(_help("options"))
    while words[0].startswith("--"):
        assert words[0].split("=")[0] in known
        words = words[2:] if "=" not in words[0] else words[1:]
    path = [words[0]]
    listed = set(re.findall(r"^  ([a-z-]+) ", _help("--help"), re.MULTILINE))
    assert path[0] in listed
    words = words[: words.index("--")] if "--" in words else words
    for word in words[1:3]:
        if re.search(rf"^  {re.escape(word)} ", _help(*path, "--help"), re.MULTILINE):
            path.append(word)
    if words[0] in ("create", "rollout"):
        assert len(path) > 1, "it has commands of its own"
    used = {word.split("=")[0] for word in words if word.startswith("--")}
    assert used <= known | _options(_help(*path, "--help")), path


def assert_evenmesh_has(words: list[str]) -> None:
    """Whether our command line can read a command, without its own name."""
    command = typer.main.get_command(application())
    while words and hasattr(command, "commands"):
        name, *words = words
        command = command.commands[name]
    if not hasattr(command, "commands"):  # a group of commands may be named in passing
        command.make_context("evenmesh", words)


@functools.cache
def _help(*words: str) -> str:
    required("kubectl")
    done = subprocess.run(["kubectl", *words], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _options(text: str) -> set[str]:
    return set(re.findall(r"(?<![\w-])(--[a-z][a-z-]*)", text))
