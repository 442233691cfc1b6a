"""The limits of a pass while several tenants ask."""

from __future__ import annotations

import torch

from evenmesh_generator.runtime.loops.decoding_loop import SmallPieces
from evenmesh_generator.runtime.options import EngineOptions, limits


def test_tenants_share_batches_where_more_rows_take_hardly_longer() -> None:
    options = EngineOptions(state_bytes=1)
    processor, gpu = (limits(options, torch.device(name), 32_000) for name in ("cpu", "cuda"))
    assert (processor.pass_tokens, processor.chunk_tokens) == (8192, 1024)
    assert processor.small == SmallPieces(pass_tokens=256, rows=16)
    assert (gpu.pass_tokens, gpu.chunk_tokens, gpu.small) == (8192, 1024, None)
    # 128 MiB of scores in double precision; 16 rows keep a processor busy.
    assert (processor.judge_rows, gpu.judge_rows) == (16, 2**27 // (8 * 32_000))
