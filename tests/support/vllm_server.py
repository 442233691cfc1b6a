"""A real Triton server with a model that speaks the tensors of Triton's vLLM backend."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import Final

from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelInstanceGroup

from evenmesh_generator.triton import environment
from evenmesh_generator.triton.repository import CONFIG, TEMPLATES, read_config
from tests.support import tiny_models
from tests.support.triton_server import TritonServer, skip_where_impossible

NAME: Final = "decoder_only_vllm"
CONTEXT_TOKENS: Final = 1024
"""What the model's prompt and answer may have together."""

_MODEL: Final = Path(__file__).parent / "vllm_backend" / "model.py"
_UNASKED: Final = Path(__file__).parent / "odd_model.py"


class VllmServer(TritonServer):
    """The server.

    ``ends``: file with a line for every request that is over: ``answered``, ``cancelled`` or ``failed``.
    """

    def __init__(self, home: Path, repository: Path, ends: Path) -> None:
        super().__init__(home, {}, bundled=True, settings={"EVENMESH_TRITON_REPOSITORY": str(repository)})
        self.ends = ends

    def ended(self, how: str) -> int:
        """How many requests ended so."""
        return self.ends.read_text().split().count(how) if self.ends.exists() else 0


@contextmanager
def serving(folder: Path, *, without: Collection[str] = ()) -> Iterator[VllmServer]:
    """Serve a tiny Llama with the configuration of our own template, as its vLLM backend would.

    Args:
        folder: for the server's files.
        without: inputs that the model lacks, as one of an earlier release; it imports no PyTorch, and is not to
            be asked.
    """
    skip_where_impossible()
    repository, home, ends = folder / "repository", folder / "home", folder / "ends"
    home.mkdir(parents=True)
    version = repository / NAME / "1"
    version.mkdir(parents=True)
    shutil.copyfile(_UNASKED if without else _MODEL, version / "model.py")
    with resources.as_file(resources.files("evenmesh_generator") / TEMPLATES / NAME / CONFIG) as path:
        config = read_config(path)
    kept = [one for one in config.input if one.name not in without]
    del config.input[:]
    config.input.extend(kept)
    config.backend = "python"
    config.instance_group[0].kind = ModelInstanceGroup.KIND_CPU
    parameters = {
        "packages": environment.prepare().packages,
        "path": str(tiny_models.llama(folder / "llama")),
        "ends": str(ends),
    }
    for name, value in parameters.items():
        config.parameters[name].string_value = value
    (repository / NAME / CONFIG).write_text(text_format.MessageToString(config), encoding="utf-8")
    with VllmServer(home, repository, ends) as server:
        yield server
