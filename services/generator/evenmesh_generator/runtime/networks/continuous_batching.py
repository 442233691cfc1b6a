"""Measure whether a model's rows may join a running batch."""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import Tensor

from evenmesh_generator.runtime.networks.protocol import Joining, Network, Prompt

_log = logging.getLogger("evenmesh.generator.runtime")

_STEPS = 4
_TOLERANCE = {torch.float32: 2e-3, torch.float64: 2e-3}
"""Largest difference to the model alone, relative to its scores' range, by number type."""

_ROUGH = 0.1
"""The same for types of half precision."""


def has_windowed_layers(config: Any, most_input: int) -> bool:
    """Return whether some layer forgets tokens the model may read: more than a short trial could show."""
    text = config.get_text_config()
    kinds = set(getattr(text, "layer_types", None) or ())
    if kinds - {"full_attention"}:
        return True
    window = getattr(text, "sliding_window", None)
    return not kinds and window is not None and window < most_input


@torch.inference_mode()
def supports_continuous_batching(network: Network[Any], model: Any, start: int | None) -> bool:
    """Return whether the scores stay the model's own when a second prompt joins late with two rows.

    Args:
        start: what a decoder beside an encoder begins with.
    """
    try:
        worst = _largest_difference(network, model, start)
    except Exception as error:  # noqa: BLE001 - whatever a model of any architecture may raise
        _log.info("this model does not support continuous batching: %s", str(error).split("\n", 1)[0])
        return False
    good = worst <= _TOLERANCE.get(model.dtype, _ROUGH)
    _log.info("continuous batching %s; largest difference %.2g", "works" if good else "does not work", worst)
    return good


def _largest_difference(network: Network[Any], model: Any, start: int | None) -> float:
    vocabulary = int(model.config.get_text_config().vocab_size)
    generator = torch.Generator().manual_seed(0)

    def drawn(count: int) -> list[int]:
        return torch.randint(vocabulary // 2, vocabulary, (count,), generator=generator).tolist()

    begins = (start,) if start is not None else ()
    early, late = Prompt((tuple(drawn(6)),), begins), Prompt((tuple(drawn(9)),), begins)
    forced = [drawn(2 * _STEPS) for _ in range(2)]
    rows = network.rows()
    worst = 0.0

    def join(owner: int, prompt: Prompt, width: int) -> Tensor:
        prefill = network.prefill(prompt)
        while not prefill.done:
            network.advance([prefill], 64)
        (started,) = network.begin([prefill])
        rows.join([Joining(owner, started, width, prompt.tokens + len(begins) + 2 * _STEPS)])
        assert started.logits is not None, "transformers models begin with scores"  # noqa: S101
        return started.logits

    def compare(found: Tensor, prompt: Prompt, written: list[int]) -> None:
        nonlocal worst
        expected = _alone(model, prompt, written)
        spread = float(expected.max() - expected.min())
        difference = float((found.float() - expected).abs().max()) / max(spread, 1e-6)
        # What is no number is a difference too; max() would pass over it.
        worst = worst if difference <= worst else difference

    compare(join(0, early, 1), early, [])
    for at in range(_STEPS):
        logits = rows.step([forced[0][at]])
        compare(logits[0], early, forced[0][: at + 1])
    compare(join(1, late, 2), late, [])
    for at in range(_STEPS):
        tokens = [forced[0][_STEPS + at], forced[1][at], forced[1][at]]
        logits = rows.step(tokens)
        compare(logits[0], early, forced[0][: _STEPS + at + 1])
        compare(logits[1], late, forced[1][: at + 1])
    rows.settle([2, 1], {1: [1, 0]}, {0: 1})
    logits = rows.step(forced[1][_STEPS : _STEPS + 1] * 2)
    compare(logits[0], late, forced[1][: _STEPS + 1])
    return worst


def _alone(model: Any, prompt: Prompt, written: list[int]) -> Tensor:
    """Return the model's scores [V] without any cache."""
    ids = torch.tensor([list(prompt.rows[0])], device=model.device)
    if prompt.start:
        decoder = torch.tensor([[*prompt.start, *written]], device=model.device)
        logits: Tensor = model(input_ids=ids, decoder_input_ids=decoder, use_cache=False).logits
    else:
        more = torch.tensor([written], dtype=torch.long, device=model.device)
        logits = model(input_ids=torch.cat([ids, more], 1), use_cache=False).logits
    return logits[0, -1].float()
