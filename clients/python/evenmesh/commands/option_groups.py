"""Share options among commands: a parameter whose type is a dataclass stands for an option of each field."""

import functools
import inspect
from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, get_type_hints


def with_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command that takes the fields of its dataclass parameters as options of its own."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: kind for name, kind in hints.items() if is_dataclass(kind)}
    signature = inspect.signature(command)
    parameters: list[inspect.Parameter] = []
    for one in signature.parameters.values():
        of_group = _options(groups[one.name]) if one.name in groups else [one]
        parameters.extend(option.replace(kind=inspect.Parameter.KEYWORD_ONLY) for option in of_group)

    @functools.wraps(command)
    def expanded(**given: Any) -> None:
        made = {
            name: kind(**{option.name: given.pop(option.name) for option in _options(kind)})
            for name, kind in groups.items()
        }
        command(**given, **made)

    expanded.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return expanded


def _options(kind: Any) -> Iterator[inspect.Parameter]:
    hints = get_type_hints(kind, include_extras=True)
    for field in fields(kind):
        default = inspect.Parameter.empty if field.default is MISSING else field.default
        yield inspect.Parameter(
            field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hints[field.name]
        )
