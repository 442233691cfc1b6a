"""Parts of a batch are computed at the same time, each by one thread."""

from __future__ import annotations

import threading

import torch

from evenmesh_generator.runtime.loops.side_by_side import SideBySide


def test_parts_are_computed_at_the_same_time_and_returned_in_order() -> None:
    """Each waits for the others, so that one after the other would never end."""
    together = threading.Barrier(3)

    def compute(part: int) -> tuple[int, str, int, bool]:
        together.wait(60)
        inferring = torch.is_inference_mode_enabled()
        return part, threading.current_thread().name, torch.get_num_threads(), inferring

    before = threading.active_count()
    with SideBySide(3, "parts", threads=1) as side_by_side, torch.inference_mode():
        found = side_by_side.map(compute, [7, 8, 9])
        alone = side_by_side.map(lambda _: threading.current_thread(), [0])
    assert [part for part, *_ in found] == [7, 8, 9]
    assert len({name for _, name, *_ in found}) == 3
    assert all(threads == 1 for _, _, threads, _ in found[1:])
    assert all(inferring for *_, inferring in found)
    assert alone == [threading.current_thread()]
    assert threading.active_count() == before


def test_one_part_at_a_time_needs_no_thread() -> None:
    with SideBySide(1, "parts", threads=1) as side_by_side:
        found = side_by_side.map(lambda part: (part, threading.current_thread()), [1, 2])
    assert found == [(1, threading.current_thread()), (2, threading.current_thread())]
