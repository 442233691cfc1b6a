"""A Jinja environment in which a template is text with places, and no program."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import count
from typing import Any, Final, cast

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

MOST_CHARACTERS: Final = 16 * 2**20
"""Longest prompt: that of the largest request, whose question goes with each passage, and a template."""

MOST_STEPS: Final = 100_000
"""Most steps of all loops of a prompt."""

_COUNTED: Final = "(counted)"
_JOINED: Final = "(joined)"
_STEPS: Final = "(steps)"
"""Names that no template can spell: filters around what a loop goes over and around parts that `~` joins, and
the variable that counts steps."""
_MOST_RANGE: Final = 1000
_MOST_NESTED: Final = 2
_FILTERS: Final = frozenset(
    [
        "capitalize",
        "default",
        "first",
        "int",
        "join",
        "last",
        "length",
        "list",
        "lower",
        "reverse",
        "string",
        "title",
        "tojson",
        "trim",
        "upper",
    ]
)
_METHODS: Final = frozenset(
    [
        "capitalize",
        "endswith",
        "lower",
        "lstrip",
        "partition",
        "removeprefix",
        "removesuffix",
        "rpartition",
        "rstrip",
        "split",
        "splitlines",
        "startswith",
        "strip",
        "title",
        "upper",
    ]
)
_REFUSED: Final = (
    nodes.AssignBlock,
    nodes.CallBlock,
    nodes.Extends,
    nodes.FilterBlock,
    nodes.FromImport,
    nodes.Import,
    nodes.Include,
    nodes.Macro,
)


class TemplateSandbox(ImmutableSandboxedEnvironment):
    """Compiles templates that can neither reach Python nor take more time or memory than their values need.

    Loops are at most two deep and have 100,000 steps in all, ranges are at most 1,000 long, numbers alone are
    multiplied, lists hold constants, and no text is longer than a prompt; macros, inclusion and filters that
    make text longer are refused.
    """

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        # Prompts are plain text for a model: escaping would change them, and passages are values only.
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            undefined=jinja2.StrictUndefined,
            autoescape=False,
        )
        self.globals = {"range": _short_range}
        self.filters = {name: self.filters[name] for name in _FILTERS}
        self.filters |= {"join": _join, _COUNTED: _counted, _JOINED: _join}

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Return whether a template may read an attribute."""
        if isinstance(obj, str | bytes):
            return attr in _METHODS
        return super().is_safe_attribute(obj, attr, value)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Compute with numbers, or add texts; refuse powers, and text that is repeated or padded."""
        if operator == "+" and isinstance(left, str) and isinstance(right, str):
            return _short(left + right)
        if operator == "**":
            raise SecurityError("powers cannot be computed")
        if not all(isinstance(one, int | float) for one in (left, right)):
            raise SecurityError(f"{operator} needs two numbers" + ", or two texts" * (operator == "+"))
        return super().call_binop(context, operator, left, right)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        self._check(tree, 0)
        for loop in tree.find_all(nodes.For):
            loop.iter = nodes.Filter(loop.iter, _COUNTED, [], [], None, None, lineno=loop.lineno)
        return cast(nodes.Template, _Joins().visit(tree))

    def _check(self, node: nodes.Node, depth: int) -> None:
        if isinstance(node, _REFUSED):
            raise jinja2.TemplateSyntaxError(f"{type(node).__name__} cannot be used", node.lineno)
        if isinstance(node, nodes.List | nodes.Tuple | nodes.Dict) and any(
            one.ctx == "load" for one in node.find_all(nodes.Name)
        ):
            raise jinja2.TemplateSyntaxError("a list can hold constants only", node.lineno)
        if isinstance(node, nodes.For):
            depth += 1
            if node.recursive or depth > _MOST_NESTED:
                raise jinja2.TemplateSyntaxError(
                    f"loops may be {_MOST_NESTED} deep, and not recursive", node.lineno
                )
        for child in node.iter_child_nodes():
            self._check(child, depth)


def rendered(template: jinja2.Template, values: Mapping[str, object]) -> str:
    """Return the text of a template.

    Raises:
        SecurityError: it is too long, or the template does what it may not.
    """
    parts: list[str] = []
    size = 0
    for part in template.generate({**values, _STEPS: count(1)}):
        parts.append(part)
        size += len(part)
        if size > MOST_CHARACTERS:
            raise SecurityError(f"the prompt is longer than {MOST_CHARACTERS} characters")
    return "".join(parts)


class _Joins(NodeTransformer):
    """Makes `~` a filter that bounds the result."""

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802 - jinja2's name
        self.generic_visit(node)
        parts = nodes.List(node.nodes, lineno=node.lineno)
        return nodes.Filter(parts, _JOINED, [], [], None, None, lineno=node.lineno)


@jinja2.pass_context
def _counted(context: jinja2.runtime.Context, items: Iterable[object]) -> Iterator[object]:
    """Yield items and count them for the prompt."""
    steps = context.resolve(_STEPS)
    for item in items:
        if next(steps) > MOST_STEPS:
            raise SecurityError(f"loops have more than {MOST_STEPS} steps")
        yield item


def _join(items: Iterable[object], between: str = "") -> str:
    return _short(between.join(map(str, items)))


def _short(text: str) -> str:
    if len(text) > MOST_CHARACTERS:
        raise SecurityError(f"a text is longer than {MOST_CHARACTERS} characters")
    return text


def _short_range(*arguments: int) -> range:
    made = range(*arguments)
    if len(made) > _MOST_RANGE:
        raise OverflowError(f"a range may have {_MOST_RANGE} numbers, has {len(made)}")
    return made
