"""Triton for the generator's models: ``python -m evenmesh_generator.triton serve | repository | runtime``."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from evenmesh_generator.settings import GeneratorSettings
from evenmesh_generator.triton import environment
from evenmesh_generator.triton.environment import RuntimeUnavailableError
from evenmesh_generator.triton.models import embedder, judge, language_model
from evenmesh_generator.triton.repository import TritonModelEntry, write_repository
from evenmesh_generator.triton.server import WrongServerError
from evenmesh_generator.triton.serving import ServeError, Serving
from evenmesh_generator.triton.settings import TritonSettings
from evenmesh_kit.compute.model_files import ModelError, locate
from evenmesh_kit.settings import SettingsError, load, variable
from evenmesh_kit.telemetry import logs


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m evenmesh_generator.triton", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser(
        "serve", help="serve the models of EVENMESH_GENERATOR_…, with the settings EVENMESH_TRITON_…"
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
        "--packages", default="", metavar="DIR", help="site-packages that hold evenmesh there"
    )
    writing.add_argument("--allow-download", action="store_true", help="fetch models from the hub")
    options = parser.parse_args(arguments)
    try:
        match options.command:
            case "serve":
                os.environ.pop(variable(GeneratorSettings, "engine"), None)  # here they are computed
                settings, generator = load(TritonSettings), load(GeneratorSettings)
                logs.configure("triton", settings)
                with Serving(settings, generator) as serving:
                    asyncio.run(serving.run())
            case "runtime":
                sys.stdout.write(f"{environment.prepare().server}\n")
            case _:
                _write(options)
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


def _write(options: argparse.Namespace) -> None:
    parameters = dict(options.parameters)
    models: list[TritonModelEntry] = []
    for name, path in options.model:
        folder = locate(path, allow_download=options.allow_download) if path else None
        models.append(language_model(name, folder, packages=options.packages, **parameters))
        models.append(judge(name, packages=options.packages))
    models += [embedder(name, path, packages=options.packages) for name, path in options.embed]
    if not models:
        raise ValueError("a repository needs a model: --model NAME=PATH or --embed NAME=PATH")
    write_repository(models, options.output.absolute())
    sys.stdout.write(f"{options.output}: {', '.join(model.name for model in models)}\n")


def _named(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


if __name__ == "__main__":
    sys.exit(main())
