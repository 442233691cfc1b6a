"""Triton for the generator's models: ``python -m services.generator.triton serve | repository | runtime``."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from meshkit import logs
from meshkit.models import ModelError, locate
from meshkit.settings import SettingsError, load, variable
from services.generator.settings import GeneratorSettings
from services.generator.triton import environment
from services.generator.triton.environment import RuntimeUnavailableError
from services.generator.triton.models import embedder, judge, language_model
from services.generator.triton.repository import ServedModel, write_repository
from services.generator.triton.server import WrongServerError
from services.generator.triton.serving import ServeError, Serving
from services.generator.triton.settings import TritonSettings


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m services.generator.triton", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser(
        "serve", help="serve the models of RAGMESH_GENERATOR_…, with the settings RAGMESH_TRITON_…"
    )
    commands.add_parser("runtime", help="make the runtime of the server on this machine, and say where it is")
    writing = commands.add_parser("repository", help="write a model repository for a server elsewhere")
    writing.add_argument(
        "--output", type=Path, required=True, metavar="DIR", help="where; what is there goes"
    )
    writing.add_argument(
        "--model",
        action="append",
        default=[],
        metavar="NAME=PATH",
        type=_named,
        help="a language model; an empty path is the bundled one",
    )
    writing.add_argument(
        "--embed",
        action="append",
        default=[],
        metavar="NAME=PATH",
        type=_named,
        help="an encoder; an empty path is the bundled one",
    )
    writing.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="PARAMETER=VALUE",
        type=_named,
        dest="parameters",
        help="a parameter of every language model, such as dtype=bfloat16",
    )
    writing.add_argument(
        "--packages", default="", metavar="DIR", help="site-packages that hold ragmesh there"
    )
    writing.add_argument("--allow-download", action="store_true", help="fetch models from the hub")
    told = parser.parse_args(arguments)
    try:
        match told.command:
            case "serve":
                os.environ.pop(variable(GeneratorSettings, "engine"), None)  # here they are computed
                settings, generator = load(TritonSettings), load(GeneratorSettings)
                logs.configure("triton", settings)
                with Serving(settings, generator) as serving:
                    asyncio.run(serving.run())
            case "runtime":
                sys.stdout.write(f"{environment.prepare().server}\n")
            case _:
                _write(told)
    except (
        SettingsError,
        RuntimeUnavailableError,
        ServeError,
        WrongServerError,
        ModelError,
        ValueError,
        OSError,
    ) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def _write(told: argparse.Namespace) -> None:
    parameters = dict(told.parameters)
    models: list[ServedModel] = []
    for name, path in told.model:
        folder = locate(path, allow_download=told.allow_download) if path else None
        models.append(language_model(name, folder, packages=told.packages, **parameters))
        models.append(judge(name, packages=told.packages))
    models += [embedder(name, path, packages=told.packages) for name, path in told.embed]
    if not models:
        raise ValueError("a repository needs a model: --model NAME=PATH or --embed NAME=PATH")
    write_repository(models, told.output.absolute())
    sys.stdout.write(f"{told.output}: {', '.join(model.name for model in models)}\n")


def _named(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


if __name__ == "__main__":
    sys.exit(main())
