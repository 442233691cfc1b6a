"""Boxes, weights, and the strip below figures."""

import numpy as np
import pytest

from evenmesh_lab import figures
from evenmesh_lab.figures.boxes import Level, draw_boxes
from evenmesh_lab.figures.style import figure, styled
from evenmesh_lab.figures.weights import draw_weights


def test_boxes_stand_at_quartiles_without_what_is_undefined() -> None:
    drawn = draw_boxes(
        {"": {"1": [0.0, 0.25, 0.5, 0.75, 1.0, np.nan], "2": []}},
        x_label="α",
        y_label="disparity",
        levels=[Level("best", 0.6)],
    )
    (axes,) = drawn.axes
    low, high = axes.patches[0].get_path().get_extents().intervaly
    assert (low, high) == (0.25, 0.75)
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["1", "2"]
    assert axes.get_legend_handles_labels()[1] == ["best"]
    assert len(drawn.legends) == 1


def test_points_on_each_other_are_one() -> None:
    drawn = draw_boxes({"": {"1": [*np.linspace(0.4, 0.6, 50), 0.0, 0.0, 1.0]}}, x_label="", y_label="y")
    (axes,) = drawn.axes
    (points,) = (line for line in axes.get_lines() if line.get_marker() == ".")
    assert np.asarray(points.get_ydata()).tolist() == [0.0, 1.0]


def test_boxes_of_several_series_stand_side_by_side() -> None:
    drawn = draw_boxes({"a": {"1": [0.5]}, "b": {"1": [0.5]}}, x_label="", y_label="y")
    (axes,) = drawn.axes
    left, right = (patch.get_path().get_extents() for patch in axes.patches)
    assert left.x1 <= right.x0
    assert [text.get_text() for text in drawn.legends[0].get_texts()] == ["a", "b"]


def test_larger_weights_are_larger_circles_and_those_that_cannot_win_are_crosses() -> None:
    drawn = draw_weights({"one": [0.6, 0.3, 0.1], "two": [0.0, 0.2, 0.4]}, ["a", "b", "c"], floor=0.1)
    axes = drawn.axes[0]
    circles = axes.collections[0]
    assert circles.get_offsets().tolist() == [[0, 0], [1, 0], [1, 1], [2, 1]]
    sizes = circles.get_sizes()
    assert sizes / sizes[0] == pytest.approx([1, 0.3 / 0.6, 0.2 / 0.6, 0.4 / 0.6])
    (crosses,) = (line for line in axes.get_lines() if line.get_marker() == "x")
    assert np.asarray(crosses.get_xydata()).tolist() == [[2, 0], [0, 1]]


def test_a_strip_is_added_below_the_axes_and_their_legend() -> None:
    with styled():
        made, axes = figure()
        axes.plot([0, 1], [0, 1], label="a")
        axes.set_xlabel("x")
        made.legend(loc="outside lower center")
        height = made.get_size_inches()[1]
        figures.state(made, "N = 60 queries; " * 12)
        made.draw_without_rendering()
    assert made.get_size_inches()[1] > height
    strip = made.texts[-1].get_window_extent()
    legend = made.legends[0].get_window_extent()
    label = axes.xaxis.label.get_window_extent()
    assert strip.y0 >= 0
    assert strip.y1 <= legend.y0 + 1
    assert legend.y1 <= label.y0 + 1
    assert strip.x1 <= made.bbox.x1
    assert figures.state(made, "") is made
