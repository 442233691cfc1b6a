"""Convert a dense encoder for OpenVINO, in a process of its own: ``python -m`` this module.

It reads one JSON object from standard input: ``model``; ``options``; and ``folder``, which is there and
empty. It writes there what :class:`evenmesh_retriever.backends.dense.compiled_encoder.CompiledEncoder` reads.
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

from evenmesh_kit.compute import openvino_conversion
from evenmesh_kit.compute.cpu_engine import EngineError
from evenmesh_kit.compute.model_files import one_line
from evenmesh_kit.compute.openvino_conversion import FEWEST, TRACED, convert_layers, reads_types
from evenmesh_retriever.backends.dense import compiled_encoder
from evenmesh_retriever.backends.dense.model_options import ModelOptions
from evenmesh_retriever.backends.dense.sentence_encoder import SentenceEncoder
from evenmesh_retriever.ports import CannotStart


class _Pooling(nn.Module):
    """What comes behind the transformer: pooling, and any layers of the model's own."""

    def __init__(self, modules: list[nn.Module]) -> None:
        super().__init__()
        self._own = nn.ModuleList(modules)

    def forward(self, states: Tensor) -> Tensor:
        """Return the vector of one text, ``[1, dimension]``."""
        # Without padding, all of it counts.
        mask = torch.ones_like(states[..., 0], dtype=torch.long)
        features: dict[str, Any] = {"token_embeddings": states, "attention_mask": mask}
        for module in self._own:
            features = module(features)
        found: Tensor = features["sentence_embedding"]
        return found


def convert(encoder: SentenceEncoder, folder: Path) -> None:
    """Write the conversion of an encoder, which computes in float32 on the CPU.

    Raises:
        EngineError: it has parts that OpenVINO does not compute, or OpenVINO cannot convert it.
    """
    transformer, *others = list(encoder.model)
    base: Any = getattr(transformer, "auto_model", None)
    backend = getattr(getattr(transformer, "tokenizer", None), "backend_tokenizer", None)
    if base is None or backend is None:
        raise EngineError("its first part is no transformer with a fast tokenizer")
    tokenizer = type(backend).from_str(backend.to_str())
    tokenizer.no_padding()
    if encoder.max_tokens < sys.maxsize:
        tokenizer.enable_truncation(encoder.max_tokens)
    else:
        tokenizer.no_truncation()
    for text in compiled_encoder.CHECKED:
        if tokenizer.encode(text).ids != encoder.model.preprocess([text])["input_ids"][0].tolist():
            raise EngineError("its tokenizer reads texts otherwise than its file says")
    if len(tokenizer.encode("").ids) < FEWEST:
        raise EngineError("its tokenizer reads a short text as fewer than two tokens")
    words = base.get_input_embeddings()
    convert_layers(base, folder / compiled_encoder.LAYERS)
    states = torch.randn(1, TRACED, words.embedding_dim)
    openvino_conversion.convert(
        _Pooling(others), [states], [[1, -1, words.embedding_dim]], folder / compiled_encoder.POOLING
    )
    np.save(folder / compiled_encoder.WORDS, words.weight.detach().float().numpy(), allow_pickle=False)
    vectors = [encoder.vectors([text])[0] for text in compiled_encoder.CHECKED]
    np.save(folder / compiled_encoder.VECTORS, np.array(vectors), allow_pickle=False)
    tokenizer.save(str(folder / compiled_encoder.TOKENIZER))
    about = {
        "fingerprint": encoder.fingerprint,
        "dimension": encoder.dimension,
        "max_tokens": encoder.max_tokens,
        "prompts": encoder.prompts,
        "reads_types": reads_types(base),
    }
    (folder / compiled_encoder.ABOUT).write_text(json.dumps(about))


def main() -> int:
    """Convert what standard input names."""
    given = json.load(sys.stdin)
    try:
        encoder = SentenceEncoder(
            given["model"], ModelOptions(**given["options"]), device="cpu", precision="fp32"
        )
        convert(encoder, Path(given["folder"]))
    except (CannotStart, EngineError, OSError) as error:
        sys.stdout.write(one_line(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
