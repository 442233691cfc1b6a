"""Convert the encoder of a pointer model for OpenVINO, in a process of its own: ``python -m`` this module.

It reads one JSON object from standard input: ``source``, a folder; and ``folder``, which is there and
empty. It writes there what :class:`evenmesh_generator.pointer.compiled_encoder.CompiledPointerEncoder` reads.
What cannot be converted ends it with status 1 and one line on standard output that says why.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from evenmesh_generator.pointer import artifact
from evenmesh_generator.pointer.compiled_encoder import CHECKED, ENCODER, PROBED
from evenmesh_generator.pointer.modeling import PointerForConditionalGeneration
from evenmesh_generator.pointer.settings import ArtifactError
from evenmesh_kit.compute import openvino_conversion
from evenmesh_kit.compute.cpu_engine import EngineError
from evenmesh_kit.compute.model_files import one_line
from evenmesh_kit.compute.openvino_conversion import traced_rows
from evenmesh_models import BaseModelError


class _Encoder(nn.Module):
    """From embeddings of words to all that the decoder reads of pairs."""

    def __init__(self, model: PointerForConditionalGeneration) -> None:
        super().__init__()
        self._model = model

    def forward(self, embedded: Tensor, mask: Tensor, types: Tensor) -> Tensor:
        """Return keys and values of all layers, copy keys and last hidden states, ``[rows, L, width]``."""
        visible = mask.bool()[:, None, None, :].expand(-1, 1, embedded.shape[1], -1)
        encoder = self._model.encoder
        hidden = encoder.embeddings(inputs_embeds=embedded, token_type_ids=types)
        for layer in encoder.layers:
            hidden = layer(hidden, visible)
        crossing: list[Any] = [layer.crossattention.self for layer in self._model.decoder.layers]  # type: ignore[union-attr]
        projected = [part(hidden) for one in crossing for part in (one.key, one.value)]
        return torch.cat([*projected, encoder.copy_key(hidden), hidden], -1)


def convert(model: PointerForConditionalGeneration, folder: Path) -> None:
    """Write the conversion of the encoder of a model, which is in float32 on the CPU.

    Raises:
        EngineError: OpenVINO is not installed, or cannot convert it.
    """
    hidden = int(model.config.hidden_size)
    encoder = _Encoder(model.train(False))
    example, shapes = traced_rows(hidden, types=True)
    openvino_conversion.convert(encoder, example, shapes, folder / ENCODER)
    np.savez(folder / CHECKED, **_checked(model, encoder))


def _checked(model: PointerForConditionalGeneration, encoder: _Encoder) -> dict[str, Any]:
    """Return what PyTorch computes for drawn tokens, the second half of them a passage."""
    words: Tensor = model.encoder.embeddings.word_embeddings.weight
    found: dict[str, Any] = {}
    for count in PROBED:
        generator = torch.Generator().manual_seed(count)
        ids = torch.randint(len(words) // 2, len(words), (count,), generator=generator)
        types = (torch.arange(count) >= count // 2).long()
        with torch.inference_mode():
            read = encoder(words[ids][None], torch.ones_like(ids)[None], types[None])[0]
        found |= {f"ids_{count}": ids.numpy(), f"read_{count}": read.float().numpy()}
    return found


def main() -> int:
    """Convert what standard input names."""
    given = json.load(sys.stdin)
    try:
        convert(artifact.load(Path(given["source"])), Path(given["folder"]))
    except (EngineError, ArtifactError, BaseModelError, OSError) as error:
        sys.stdout.write(one_line(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
