"""What a processor sums is in whole blocks, so that a row's result depends on no other row.

That a kernel's result for equal shapes does not depend on where a row stands is a matter of the processor,
and is measured (docs/guides/generation.md); here are the shapes.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from evenmesh_generator.runtime.networks import linear as linear_module
from evenmesh_generator.runtime.networks.linear import Linear
from evenmesh_generator.runtime.networks.pointer import _expected
from evenmesh_generator.runtime.networks.timeline import Timeline


@pytest.mark.parametrize("count", [1, 7, 8, 9, 64])
def test_a_projection_is_computed_so_many_rows_at_a_time(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    torch.manual_seed(0)
    weight, bias, hidden = torch.randn(5, 6), torch.randn(5), torch.randn(count, 6)
    expected = functional.linear(hidden, weight, bias)
    shapes: list[tuple[int, ...]] = []
    real = functional.linear

    def noted(given: Tensor, *arguments: Tensor) -> Tensor:
        shapes.append(tuple(given.shape))
        return real(given, *arguments)

    monkeypatch.setattr(linear_module.functional, "linear", noted)
    found = Linear(weight, bias, rows=8)(hidden)
    assert shapes == [(8, 6)] * -(-count // 8)
    torch.testing.assert_close(found, expected)


def test_a_row_sees_its_own_tokens_at_the_end_of_whole_blocks() -> None:
    """Rows of 3 and of 40 tokens: the same attention as without blocks, and zeros where there is no token."""
    torch.manual_seed(0)
    kept = [torch.randn(1, 2, 2, length, 4) for length in (3, 40)]
    timeline = Timeline(grows=True)
    timeline.insert([(one, 1, 60) for one in kept])
    for _ in range(30):  # past a block, and past the columns of the first buffer
        timeline.reserve()
        keys, values, query = (torch.randn(2, 2, 1, 4) for _ in range(3))
        plain = timeline.write(0, keys, values), timeline.mask(torch.float32)
        blocks = timeline.write(0, keys, values, block=32), timeline.mask(torch.float32, block=32)
        (padded, _), mask = blocks
        assert padded.shape[2] % 32 == 0
        assert 0 <= padded.shape[2] - plain[0][0].shape[2] < 32
        assert mask is None or mask.shape[-1] == padded.shape[2]
        assert torch.equal(padded[:, :, -plain[0][0].shape[2] :], plain[0][0])
        ways = [
            functional.scaled_dot_product_attention(query, *seen, attn_mask=hidden)
            for seen, hidden in (plain, blocks)
        ]
        torch.testing.assert_close(ways[0], ways[1])
        timeline.advance()


def test_a_mean_of_blocks_is_the_mean() -> None:
    torch.manual_seed(0)
    scores = torch.randn(3, 4, 192)
    scores[1, :, 100:] = float("-inf")
    probs, values = scores.softmax(-1), torch.randn(3, 192)
    torch.testing.assert_close(_expected(probs, values), (probs @ values[:, :, None])[:, :, 0])
    # A longer source of another request changes nothing.
    longer = functional.pad(probs, (0, 64)), functional.pad(values, (0, 64), value=7.0)
    assert torch.equal(_expected(*longer), _expected(probs, values))
