"""Convert a cross-encoder for OpenVINO, in a process of its own: ``python -m`` this module.

It reads one JSON object from standard input: ``source``, a folder; ``changeable``, whether the model is to
read changes of its linear layers; and ``folder``, which is there and empty. It writes there what
:class:`evenmesh_reranker.backends.compiled_encoder.CompiledCrossEncoder` reads. What cannot be converted ends
it with status 1 and one line on standard output that says why.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from sentence_transformers import CrossEncoder
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutputWithPoolingAndCrossAttentions

from evenmesh_kit.compute import openvino_conversion
from evenmesh_kit.compute.cpu_engine import EngineError
from evenmesh_kit.compute.model_files import ModelError, one_line
from evenmesh_kit.compute.openvino_conversion import (
    FEWEST,
    POOLER,
    TRACED,
    change_inputs,
    changes_added,
    convert_layers,
    linear_layers,
    reads_types,
)
from evenmesh_kit.compute.placement import Placement
from evenmesh_reranker.backends import compiled_encoder
from evenmesh_reranker.backends.encoder import fusions_of, load, reads_asking, scores_of
from evenmesh_reranker.backends.file_tokenizer import FileTokenizer
from evenmesh_reranker.backends.first_token import needs_first_token_alone
from evenmesh_reranker.domain import Agent
from evenmesh_reranker.models import pairs


class _Head(nn.Module):
    """What comes behind the layers: from the last hidden states to logits, with changes as inputs."""

    def __init__(self, encoder: CrossEncoder, base: Any, changed: Sequence[str], *, types: bool) -> None:
        super().__init__()
        self._encoder = encoder
        self._base = base
        self._changed = changed
        self._types = types

    def forward(self, states: Tensor, *changes: Tensor) -> Tensor:
        """Return the logits of one row, ``[1, labels]``."""
        pooler = getattr(self._base, POOLER, None)

        def given(*_: Any, **__: Any) -> BaseModelOutputWithPoolingAndCrossAttentions:
            pooled = None if pooler is None else pooler(states)
            return BaseModelOutputWithPoolingAndCrossAttentions(
                last_hidden_state=cast(Any, states), pooler_output=pooled
            )

        mask = torch.ones_like(states[..., 0], dtype=torch.long)
        features = {"input_ids": torch.zeros_like(mask), "attention_mask": mask}
        if self._types:
            features["token_type_ids"] = torch.zeros_like(mask)
        self._base.forward = given
        try:
            with changes_added(cast(nn.Module, self._encoder.model), self._changed, changes):
                logits: Tensor = self._encoder(features)["scores"]
        finally:
            del self._base.forward
        return logits.reshape(1, -1)


def convert(encoder: CrossEncoder, folder: Path, *, changeable: bool) -> None:
    """Write the conversion of a cross-encoder, which is in float32 on the CPU.

    Raises:
        EngineError: it has parts that OpenVINO does not compute, or OpenVINO cannot convert it.
    """
    model = cast(Any, encoder.model)
    if encoder.tokenizer.padding_side == "left":
        raise EngineError("its tokenizer pads on the left, as those of decoders do")
    prefix: str = model.base_model_prefix
    base: Any = getattr(model, prefix, None)
    if base is None:
        raise EngineError("it has no encoder under the name of its base model")
    inside, types = linear_layers(base), reads_types(base)
    named = {f"{prefix}.{name}": sizes for name, sizes in inside.items()}
    head = {
        name: (one.in_features, one.out_features)
        for name, one in model.named_modules()
        if isinstance(one, nn.Linear) and name not in named
    }
    words = base.get_input_embeddings()
    first_token = needs_first_token_alone(encoder)
    convert_layers(
        base,
        folder / compiled_encoder.LAYERS,
        inside if changeable else {},
        first_token=first_token,
    )
    more, theirs = change_inputs(head if changeable else {})
    openvino_conversion.convert(
        _Head(encoder, base, tuple(head) if changeable else (), types=types),
        [torch.randn(1, 1 if first_token else TRACED, words.embedding_dim), *more],
        [[1, 1 if first_token else -1, words.embedding_dim], *theirs],
        folder / compiled_encoder.HEAD,
    )
    if changeable:
        return
    np.save(folder / compiled_encoder.WORDS, words.weight.detach().float().numpy(), allow_pickle=False)
    encoder.tokenizer.save_pretrained(folder)
    _check_tokenizer(encoder, folder)
    checked = _checked(encoder, base, types=types, first_token=first_token)
    np.savez(folder / compiled_encoder.CHECKED, **checked)
    about = {
        "fusions": fusions_of(encoder).dumped(),
        "reads_asking": reads_asking(encoder),
        "layers": named,
        "head": head,
        "inputs": encoder.tokenizer.model_input_names,
        "reads_types": types,
        "max_length": encoder.max_seq_length,
    }
    (folder / compiled_encoder.ABOUT).write_text(json.dumps(about))


def _checked(encoder: CrossEncoder, base: Any, *, types: bool, first_token: bool) -> dict[str, Any]:
    """Return what PyTorch computes for drawn tokens."""
    found: dict[str, Any] = {}
    vocabulary = len(base.get_input_embeddings().weight)
    for count in compiled_encoder.PROBED:
        generator = torch.Generator().manual_seed(count)
        # The last of a vocabulary are words; padding and other marks are among the first.
        ids = torch.randint(vocabulary // 2, vocabulary, (1, count), generator=generator)
        features = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        try:
            with torch.inference_mode():
                states: Tensor = base(**features).last_hidden_state
                if types:
                    features["token_type_ids"] = torch.zeros_like(ids)
                logits: Tensor = encoder(features)["scores"]
        except (RuntimeError, IndexError) as error:
            raise EngineError(f"PyTorch cannot compute {count} tokens: {one_line(error)}") from None
        found[f"ids_{count}"] = ids[0].numpy()
        found[f"states_{count}"] = (states[0, :1] if first_token else states[0]).float().numpy()
        found[f"score_{count}"] = np.array(scores_of(logits)[0])
    return found


def _check_tokenizer(encoder: CrossEncoder, folder: Path) -> None:
    """Compare the tokenizer that was written with that of the model."""
    kept = FileTokenizer(folder, encoder.tokenizer.model_input_names)
    queries, texts = ["which lamp? [SEP]", ""], ["it is a café\n at Night! " * 60, "?!"]
    read = [
        pairs.rows(one, queries, texts, [Agent("t", "m"), Agent()], encoder.max_seq_length)
        for one in (encoder.tokenizer, kept)
    ]
    added = [one.get_added_vocab() for one in (encoder.tokenizer, kept)]
    if read[0] != read[1] or added[0] != added[1] or len(kept) != len(cast(Any, encoder.tokenizer)):
        raise EngineError("its tokenizer reads texts otherwise than its file says")
    if len(pairs.rows(kept, [""], [""], [Agent()], None)[0].ids) < FEWEST:
        raise EngineError("its tokenizer reads a short pair as fewer than two tokens")


def main() -> int:
    """Convert what standard input names."""
    given = json.load(sys.stdin)
    try:
        encoder = load(Path(given["source"]), Placement.choose("cpu", "float32"))
        convert(encoder, Path(given["folder"]), changeable=given["changeable"])
    except (EngineError, ModelError, OSError) as error:
        sys.stdout.write(one_line(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
