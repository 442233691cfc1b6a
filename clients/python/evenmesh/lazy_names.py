"""Load the public names of a package when they are first used; its ``__init__.pyi`` says where each is."""

import ast
import pkgutil
from collections.abc import Callable
from importlib import import_module


def lazy_names(package: str) -> tuple[Callable[[str], object], list[str]]:
    """Return ``__getattr__`` and ``__all__`` of a package, from the imports of its stub."""
    stub = ast.parse(pkgutil.get_data(package, "__init__.pyi") or b"")
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    module_of = {alias.name: str(node.module) for node in imports for alias in node.names}

    def load(name: str) -> object:
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(module_of[name]), name)

    return load, sorted(module_of)
