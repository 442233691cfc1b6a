"""Rows of the batch: layout, keys and values in time, sources; each against the simplest thing that is right."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from evenmesh_generator.runtime.loops.layout import Layout
from evenmesh_generator.runtime.networks import linear as linear_module
from evenmesh_generator.runtime.networks import timeline as timeline_module
from evenmesh_generator.runtime.networks.encodings import EncodingStore, content_key
from evenmesh_generator.runtime.networks.linear import Linear
from evenmesh_generator.runtime.networks.pointer import _expected
from evenmesh_generator.runtime.networks.sources import STATES, Sources
from evenmesh_generator.runtime.networks.timeline import Timeline
from evenmesh_kit.compute.tenant_cache import ENTRY_BYTES

LAYERS, HEADS, SIZE = 2, 2, 4
MOVES = st.lists(
    st.tuples(st.sampled_from(["join", "step", "fork", "leave"]), st.integers(0, 10**6)), max_size=40
)


@dataclass
class Plain:
    """Rows as lists of tensors."""

    widths: dict[int, int] = field(default_factory=dict)
    rows: dict[tuple[int, int], torch.Tensor] = field(default_factory=dict)
    sources: dict[int, torch.Tensor] = field(default_factory=dict)


@settings(max_examples=60, deadline=None)
@given(MOVES, st.booleans())
def test_rows_hold_what_they_should_whatever_happens(moves: list[tuple[str, int]], grows: bool) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timeline_module, "_FIRST", 16)  # so that buffers grow in a few steps
        _move(moves, Timeline(grows=grows))


def _move(moves: list[tuple[str, int]], timeline: Timeline) -> None:
    torch.manual_seed(0)
    layout, sources, plain = Layout(), Sources(), Plain()
    owners = iter(range(10**6))
    for move, number in moves:
        present = list(plain.widths)
        owner = present[number % len(present)] if present else -1
        parents: dict[int, list[int]] = {}
        leaving: dict[int, int] = {}
        if move == "join":
            owner, width, length = next(owners), 1 + number % 4, number // 4 % 20
            kept = torch.randn(LAYERS, 2, HEADS, length, SIZE)
            parts = [{STATES: torch.randn(LAYERS, 2, HEADS, 1 + number % 3 + at, SIZE)} for at in range(2)]
            timeline.insert([(kept, width, number // 80 % 60)])
            layout.add(owner, width)
            sources.add([(owner, width, parts)])
            plain.widths[owner] = width
            plain.sources[owner] = torch.cat([part[STATES] for part in parts], 3)
            for beam in range(width):
                plain.rows[owner, beam] = kept
        elif move == "step" and present:
            timeline.reserve()
            fresh = torch.randn(LAYERS, 2, len(layout), HEADS, 1, SIZE)
            for layer in range(LAYERS):
                timeline.write(layer, fresh[layer, 0], fresh[layer, 1])
            timeline.advance()
            for mine, rows in layout.rows.items():
                for beam, row in enumerate(rows):
                    plain.rows[mine, beam] = torch.cat([plain.rows[mine, beam], fresh[:, :, row]], 3)
        elif move == "fork" and present:
            parents = {
                owner: [number // (7**beam) % plain.widths[owner] for beam in range(plain.widths[owner])]
            }
            old = [plain.rows[owner, beam] for beam in range(plain.widths[owner])]
            for beam, parent in enumerate(parents[owner]):
                plain.rows[owner, beam] = old[parent]
        elif move == "leave" and present:
            leaving = {owner: plain.widths.pop(owner)}
            del plain.sources[owner]
            plain.rows = {key: value for key, value in plain.rows.items() if key[0] != owner}
        if parents or leaving:
            timeline.rearrange(layout.settle(parents, leaving))
            for gone, width in leaving.items():
                sources.remove(gone, width)
        _check(layout, timeline, sources, plain)


def _check(layout: Layout, timeline: Timeline, sources: Sources, plain: Plain) -> None:
    assert sorted(row for rows in layout.rows.values() for row in rows) == list(range(len(layout)))
    assert len(layout) == len(timeline) == sum(plain.widths.values())
    if not plain.widths:
        assert timeline.bytes == sources.bytes == 0
        return
    timeline.reserve()
    ones = torch.ones(len(layout), HEADS, 1, SIZE)
    mask = timeline.mask(torch.float32)
    sources.place(layout.rows, torch.device("cpu"))
    queries = torch.randn(len(layout), HEADS, 1, SIZE)
    for layer in range(LAYERS):
        keys, values = timeline.write(layer, ones, ones)
        in_blocks = timeline.write(layer, ones, ones, block=32)
        read = sources.attend(layer, queries, 0.5)
        for (owner, beam), kept in plain.rows.items():
            row = layout.rows[owner][beam]
            length = kept.shape[3]
            assert torch.equal(keys[row, :, keys.shape[2] - 1 - length : -1], kept[layer, 0])
            assert torch.equal(values[row, :, keys.shape[2] - 1 - length : -1], kept[layer, 1])
            # What is masked counts nothing times its value, which must be a number, whoever was there before.
            assert not any(seen[row, :, : seen.shape[2] - 1 - length].any() for seen in in_blocks)
            if mask is not None:
                assert ((mask[row, 0, 0] == 0).sum(), mask[row, 0, 0, -1 - length]) == (length + 1, 0)
            source = plain.sources[owner][layer]
            alone = functional.scaled_dot_product_attention(queries[row], source[0], source[1], scale=0.5)
            assert torch.allclose(read[row], alone, atol=1e-5)


def test_few_rows_move() -> None:
    """Beams that go on from themselves stay; of two from one, the second takes the row of the one that ends."""
    layout = Layout()
    layout.add(0, 3)
    layout.add(1, 1)
    assert layout.settle({0: [1, 0, 1]}, ()) == [0, 1, 1, 3]
    assert layout.rows == {0: [1, 0, 2], 1: [3]}
    assert layout.settle({}, {0}) == [3]
    assert layout.rows == {1: [0]}


def test_what_was_used_last_is_kept() -> None:
    """Room for two of 8 bytes."""
    store: EncodingStore[bytes] = EncodingStore(2 * (8 + ENTRY_BYTES), len)
    for name in (b"a", b"b"):
        store.put(name, name * 8, "t")
    assert store.get(b"a", "t") == b"aaaaaaaa"
    store.put(b"c", b"c" * 8, "t")
    assert store.get(b"b", "t") is None
    assert store.get(b"a", "t") is not None
    assert (store.size, store.hits, store.misses) == (store.most_bytes, 2, 1)
    store.put(b"d", b"d" * 1000, "t")
    assert store.get(b"d", "t", count=False) is None
    store.clear()
    assert store.size == 0


def test_a_tenant_finds_and_evicts_nothing_of_another() -> None:
    """Room for four; one tenant that keeps adding evicts its own."""
    store: EncodingStore[bytes] = EncodingStore(4 * (8 + ENTRY_BYTES), len)
    store.put(b"secret", b"s" * 8, "polite")
    assert store.get(b"secret", "greedy") is None
    for at in range(20):
        store.put(bytes([at]), b"g" * 8, "greedy")
    assert store.get(b"secret", "polite") == b"s" * 8
    assert store.size <= store.most_bytes


def test_keys_tell_rows_and_their_beginnings_apart() -> None:
    assert content_key([1, 2, 3]) == content_key((1, 2, 3))
    keys = {content_key([1, 2, 3]), content_key([1, 2, 4]), content_key([1, 2]), content_key([3], after=b"x")}
    assert len(keys) == 4
    assert content_key([3], after=b"x") != content_key([3], after=b"y")
    assert content_key([3], tenant="a") not in (content_key([3]), content_key([3], tenant="b"))


@pytest.mark.parametrize(("others", "whole"), [([], 64), ([64], 64), ([65, 3], 128)])
def test_sources_are_computed_in_whole_blocks(others: list[int], whole: int) -> None:
    """A source's sums are in the same order however long others are: a processor treats the rest of a block alike."""
    sources = Sources()
    lengths = [40, *others]
    parts = [{STATES: torch.randn(LAYERS, 2, HEADS, length, SIZE)} for length in lengths]
    sources.add([(owner, 1, [part]) for owner, part in enumerate(parts)])
    sources.place({owner: [owner] for owner in range(len(lengths))}, torch.device("cpu"))
    (group,) = sources.groups
    states = group.field(STATES, 1)
    assert states.shape == (len(lengths), 2, HEADS, whole, SIZE)
    for owner, (part, length) in enumerate(zip(parts, lengths, strict=True)):
        assert torch.equal(states[owner, :, :, :length], part[STATES][1])
        assert not states[owner, :, :, length:].any()
    assert group.visible is not None
    assert group.visible.sum(1).tolist() == lengths


# --- Whole blocks: that a kernel's result for equal shapes does not depend on where a row stands is a matter of
# the processor, and is measured (docs/guides/generation.md); here are the shapes.


@pytest.mark.parametrize("count", [1, 7, 8, 9, 64])
def test_a_projection_is_computed_so_many_rows_at_a_time(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    torch.manual_seed(0)
    weight, bias, hidden = torch.randn(5, 6), torch.randn(5), torch.randn(count, 6)
    expected = functional.linear(hidden, weight, bias)
    shapes: list[tuple[int, ...]] = []
    real = functional.linear

    def noted(given: torch.Tensor, *arguments: torch.Tensor) -> torch.Tensor:
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
