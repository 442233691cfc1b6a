"""``python -m evenmesh_training.bundled.reranker_export``: write the bundled cross-encoder and its card."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

import evenmesh_models
from evenmesh_kit.compute.model_files import ModelError
from evenmesh_lab.files.agent_runs import read_agent_runs
from evenmesh_models import MINILM_PACKAGE, MINILM_SHA256, TOKENIZER, WEIGHTS
from evenmesh_reranker.bundled import AGENT_TOKENS, CONFIG, WORDS, base_weights
from evenmesh_training.bundled.reranker_card import card
from evenmesh_training.ium import start


def main() -> int:
    """Write weights, configuration and card; print the size of the weights."""
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--model", type=Path, required=True, help="folder of the last round's model")
    add("--warm-start", type=Path, required=True, help="warm_start.json of the model it started from")
    add("--runs", type=Path, action="append", required=True, help="runs.jsonl of a run; repeatable")
    add("--listwise", type=Path, help="listwise.json of the training on lists")
    add(
        "--fusion",
        type=float,
        nargs=4,
        metavar=("WEIGHT", "NEIGHBORS", "SLOPE", "INTERCEPT"),
        help="of make rerank-table",
    )
    add("--share", type=float, default=1.0, help="--share given to reranker_blend")
    add("--evaluation", type=Path, action="append", required=True, help="output of an evaluation; repeatable")
    add("--output", type=Path, default=evenmesh_models.cross_encoder())
    given = parser.parse_args()
    tokenizer, model = start.load(given.model)
    warm = json.loads(given.warm_start.read_text(encoding="utf-8"))
    warm.pop("last_losses", None)
    lists = None if given.listwise is None else json.loads(given.listwise.read_text(encoding="utf-8"))
    fusion = given.fusion and dict(
        zip(("weight", "neighbors", "slope", "intercept"), given.fusion, strict=True)
    )
    size = export(model, tokenizer, given.output, fusion, warm_start=warm, share=given.share, listwise=lists)
    measured = [json.loads(path.read_text(encoding="utf-8")) for path in given.evaluation]
    runs = read_agent_runs(given.runs)
    text = card(size, tokenizer.model_max_length, warm, runs, measured, share=given.share, lists=lists)
    (given.output / "MODEL_CARD.md").write_text(text, encoding="utf-8")
    sys.stdout.write(f"{size:,} bytes in {given.output}\n")
    return 0


def export(
    model: Any, tokenizer: Any, target: Path, fusion: Mapping[str, float] | None = None, **record: Any
) -> int:
    """Write the part of a model that differs from the base model, and return its size in bytes.

    Args:
        model: a model that :func:`evenmesh_training.ium.start.fresh` began, with the base's embeddings of
            words.
        tokenizer: its tokenizer, with agent tokens.
        target: folder of the two files; made if it is missing.
        fusion: numbers of :class:`evenmesh_reranker.domain.Fusion`; None: not fused.
        record: how the model was trained, for people.

    Raises:
        ModelError: the embeddings of words were trained.
    """
    base = base_weights()
    trained: dict[str, Tensor] = {}
    for name, tensor in model.state_dict().items():
        if name == WORDS:
            words = len(base[name])
            if not torch.equal(tensor[:words], base[name]):
                raise ModelError("the embeddings of words are not those of the base model")
            trained[AGENT_TOKENS] = tensor[words:].detach().clone().contiguous()
        elif name not in base or not torch.equal(tensor, base[name]):
            trained[name] = tensor.detach().to(torch.bfloat16).contiguous()
    target.mkdir(parents=True, exist_ok=True)
    beside = target / f".{WEIGHTS}"
    save_file(trained, beside, metadata={"format": "pt"})
    beside.replace(target / WEIGHTS)
    config = {
        "base_package": MINILM_PACKAGE,
        "base_sha256": MINILM_SHA256[WEIGHTS],
        "tokenizer_sha256": MINILM_SHA256[TOKENIZER],
        "weights_sha256": evenmesh_models.fingerprint(target / WEIGHTS),
        "max_length": tokenizer.model_max_length,
        "tokens": tokenizer.convert_ids_to_tokens(list(range(len(base[WORDS]), len(tokenizer)))),
        "fusion": None if fusion is None else dict(fusion),
        "reads_asking": True,
        "record": record,
    }
    (target / CONFIG).write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
    return (target / WEIGHTS).stat().st_size


if __name__ == "__main__":
    sys.exit(main())
