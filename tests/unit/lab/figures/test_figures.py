import re

import numpy as np
import pytest
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.text import Text

from evenmesh_lab import figures
from evenmesh_lab.files import read_attributes, read_audits, read_conversations, read_ensemble, read_labels
from evenmesh_lab.studies import Bootstrap, conversation, exposure, inconsistency, utility
from tests.unit.lab.conftest import EXAMPLES

QUICK = Bootstrap(num_resamples=100)


@pytest.fixture(scope="module")
def studies():
    """A study of each kind of the examples; none of the tests changes one."""
    examples = EXAMPLES
    audits, labels = [examples / "audit.jsonl"], read_labels(examples / "labels.jsonl")
    groups = labels.attributes["provider"]
    talks = {name: read_conversations(examples / f"{name}.txt") for name in ("talker", "teller")}
    return {
        "exposure": exposure.measure(
            read_audits(audits), labels, k=2, groups=groups, group_by="provider", bootstrap=QUICK
        ),
        "utility": utility.measure(read_audits(audits), labels, k=2, bootstrap=QUICK),
        "conversation": conversation.measure(
            talks, read_attributes(examples / "attributes.json"), bootstrap=QUICK
        ),
        "inconsistency": inconsistency.measure(read_ensemble([examples / "ensemble.jsonl"]), bootstrap=QUICK),
    }


@pytest.fixture(scope="module")
def drawn(studies):
    """The figures of each study, laid out; none of the tests changes one."""
    found = {kind: figures.of(study) for kind, study in studies.items()}
    for made in found.values():
        for figure in made.values():
            figure.draw_without_rendering()
    return found


def test_every_study_has_its_figures(drawn):
    assert {kind: list(made) for kind, made in drawn.items()} == {
        "exposure": [
            "disparity-quality",
            "exposure-groups",
            "exposure-passages",
            "dial-disparity",
            "dial-quality",
        ],
        "utility": ["disparity-utility", "quality-utility", "disparity-quality", "dial-utility"],
        "conversation": ["relevance-fairness"],
        "inconsistency": [
            "win-ratios",
            "win-ratios-retriever-error",
            "win-ratios-hallucination-error",
            "win-ratios-extraction-error",
            "win-ratios-lucky-guess",
        ],
    }


@pytest.mark.slow
def test_equal_figures_are_equal_bytes_and_carry_no_date(studies):
    for study in studies.values():
        again = figures.of(study)
        for name, figure in figures.of(study).items():
            svg = figures.to_bytes(figure, "svg")
            assert svg == figures.to_bytes(again[name], "svg")
            assert b"dc:date" not in svg
            assert figures.to_bytes(figure, "png") == figures.to_bytes(again[name], "png")


def test_a_figure_is_laid_out_once_for_all_its_files(studies, monkeypatch):
    laid_out = []
    execute = ConstrainedLayoutEngine.execute
    figure = figures.of(studies["conversation"])["relevance-fairness"]
    monkeypatch.setattr(
        ConstrainedLayoutEngine,
        "execute",
        lambda engine, made: laid_out.append(made) or execute(engine, made),
    )
    svg = figures.to_bytes(figure, "svg")
    places = [axes.get_position().bounds for axes in figure.axes]
    assert figures.to_bytes(figure, "png")
    assert figures.to_bytes(figure, "svg") == svg
    assert [axes.get_position().bounds for axes in figure.axes] == places
    assert laid_out == [figure]


def test_axes_are_named_and_names_of_points_do_not_overlap(drawn):
    for made in drawn.values():
        for figure in made.values():
            axes = figure.axes[0]
            assert axes.get_xlabel()
            named = [text for text in axes.texts if isinstance(text, Text) and text.get_text()]
            boxes = [text.get_window_extent() for text in named]
            crossing = [
                (named[a].get_text(), named[b].get_text())
                for a in range(len(boxes))
                for b in range(a)
                if boxes[a].overlaps(boxes[b])
            ]
            assert crossing == []


def test_nothing_leaves_the_page(drawn):
    for made in drawn.values():
        for name, figure in made.items():
            page = figure.bbox
            for legend in figure.legends:
                box = legend.get_window_extent()
                assert box.x0 >= page.x0, name
                assert box.x1 <= page.x1, name


def test_undefined_ratios_are_a_dash(studies):
    matrix = np.array([[0.0, np.nan], [0.25, 0.0]])
    figure = figures.draw_win_ratios(matrix, ["a", "b"])

    assert sorted(text.get_text() for text in figure.axes[0].texts) == ["", "", "0.25", "–"]


def test_figures_are_saved_by_their_ending(studies, tmp_path):
    figure = figures.of(studies["conversation"])["relevance-fairness"]

    for ending, magic in ((".png", b"\x89PNG"), (".svg", b"<?xml"), (".pdf", b"%PDF")):
        figures.save(figure, tmp_path / f"f{ending}")
        assert (tmp_path / f"f{ending}").read_bytes().startswith(magic)
    assert re.search(rb"<path ", (tmp_path / "f.svg").read_bytes())
    with pytest.raises(ValueError, match=r"f\.gif: figures are \.png, \.svg or \.pdf"):
        figures.save(figure, tmp_path / "f.gif")


def test_nothing_to_draw_is_nothing():
    assert figures.draw_exposure([("x", [])]) is None


def test_deterministic_rankings_alone_are_no_curve(examples):
    runs = [examples / "bm25.trec", examples / "dense.trec"]
    study = exposure.measure(read_audits(runs), read_labels(examples / "qrels.txt"), k=2, bootstrap=QUICK)

    assert list(figures.of(study)) == ["exposure-passages"]
