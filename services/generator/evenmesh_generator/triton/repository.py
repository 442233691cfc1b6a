"""Model repositories: one folder per served model, made of the templates in ``../model_repository``.

Production mounts what this writes into the stock image; ``serve`` writes the same for this machine.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Final

from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

TEMPLATES: Final = "model_repository"
CONFIG: Final = "config.pbtxt"
# Whatever the umask: the server in its container may run as another user, and nothing here is secret.
_FOLDER: Final = 0o755
_FILE: Final = 0o644


@dataclass(frozen=True, slots=True)
class TritonModelEntry:
    """A model of a repository.

    Attributes:
        name: the Triton model's name.
        template: which template it is made of: ``encoder_decoder``, ``decoder_only``, ...
        parameters: values over the template's; only parameters that the template has.
        version: number of its version folder, [1, inf).
    """

    name: str
    template: str
    parameters: Mapping[str, str] = field(default_factory=dict)
    version: int = 1


def write_repository(models: Sequence[TritonModelEntry], folder: Path) -> None:
    """Write a repository of ``models``; replace what was in ``folder`` in one step.

    Raises:
        ValueError: a template or a parameter does not exist, or two models have one name.
        OSError: it cannot be written.
    """
    names = [model.name for model in models]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"two models are called {name!r}")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f"{folder.name}.new-", dir=folder.parent) as beside:
        new = Path(beside) / "repository"
        new.mkdir()
        for model in models:
            write_model(model, new)
        new.chmod(_FOLDER)
        if folder.exists():
            folder.rename(Path(beside) / "old")
        new.rename(folder)


def write_model(model: TritonModelEntry, repository: Path) -> Path:
    """Write the folder of one model, and replace its configuration if it exists.

    Another version of a model that is there is written beside the versions it has.

    Returns:
        The model's folder.

    Raises:
        ValueError: the template or a parameter does not exist.
        OSError: it cannot be written.
    """
    with ExitStack() as stack:
        templates = stack.enter_context(resources.as_file(resources.files("evenmesh_generator") / TEMPLATES))
        template = templates / model.template
        if not (template / CONFIG).is_file():
            known = ", ".join(sorted(path.parent.name for path in templates.glob(f"*/{CONFIG}")))
            raise ValueError(f"no template {model.template!r}; there are {known}")
        folder = repository / model.name
        version = folder / str(model.version)
        version.mkdir(parents=True, exist_ok=True)
        for path in (template / "1").iterdir():
            if path.is_file():
                shutil.copyfile(path, version / path.name)
        (folder / CONFIG).write_text(configured(model, template / CONFIG), encoding="utf-8")
    for path in (folder, *folder.rglob("*")):
        path.chmod(_FOLDER if path.is_dir() else _FILE)
    return folder


def configured(model: TritonModelEntry, template: Path) -> str:
    """Return the text of the configuration of ``model``.

    Raises:
        ValueError: the template has no such parameter.
    """
    config = read_config(template)
    config.name = model.name
    for name, value in model.parameters.items():
        if name not in config.parameters:
            known = ", ".join(sorted(config.parameters))
            raise ValueError(f"{model.template} has no parameter {name!r}; there are {known}")
        config.parameters[name].string_value = value
    text: str = text_format.MessageToString(config)
    return text


def read_config(path: Path) -> ModelConfig:
    """Read a ``config.pbtxt``.

    Raises:
        ValueError: it is none.
    """
    try:
        return text_format.Parse(path.read_text(encoding="utf-8"), ModelConfig())
    except text_format.ParseError as error:
        raise ValueError(f"{path}: {error}") from None
