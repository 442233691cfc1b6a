"""Confidence is a calibrated probability, checked where a model is loaded."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from evenmesh_generator.pointer import artifact
from evenmesh_generator.pointer.confidence import (
    Confidence,
    Sigmoid,
    evidence,
    expected_calibration_error,
    fit,
)
from evenmesh_generator.pointer.settings import ArtifactError
from tests.support import tiny_models


def test_a_sigmoid_is_a_probability_whatever_its_argument() -> None:
    curve = Sigmoid(2.0, 1.0)
    assert curve(-0.5) == 0.5
    assert curve(0.0) == pytest.approx(1 / (1 + math.exp(-1)))
    assert (curve(-1e9), curve(1e9)) == (pytest.approx(0.0), 1.0)


def test_an_abstention_is_as_sure_as_its_first_token_and_a_span_as_all() -> None:
    confidence = Confidence(Sigmoid(1.0, 0.0), Sigmoid(1.0, 1.0))
    # probabilities of 1/2, and of 1/4 and 1/9, whose geometric mean is 1/6
    assert evidence([math.log(1 / 2), -30.0], abstains=True) == pytest.approx(0.0, abs=1e-12)
    assert evidence([math.log(1 / 4), math.log(1 / 9)], abstains=False) == pytest.approx(math.log(1 / 5))
    assert confidence([math.log(1 / 2), -30.0], abstains=True) == pytest.approx(1 / (1 + math.exp(-1)))
    assert confidence([math.log(1 / 4), math.log(1 / 9)], abstains=False) == pytest.approx(1 / 6)
    assert confidence([0.0, 0.0], abstains=False) == pytest.approx(1.0, abs=1e-5)
    assert Confidence.of(confidence.settings()) == confidence


def test_a_fit_finds_the_curve_that_answers_were_drawn_from() -> None:
    rng = np.random.default_rng(3)
    values = -rng.exponential(3.0, 20_000)
    right = rng.random(20_000) < 1 / (1 + np.exp(-(0.5 * values + 1.5)))
    curve = fit(values.tolist(), right.tolist())
    assert curve.slope == pytest.approx(0.5, abs=0.03)
    assert curve.intercept == pytest.approx(1.5, abs=0.08)
    given = [curve(value) for value in values.tolist()]
    assert expected_calibration_error(given, right.tolist()) < 0.02


def test_the_calibration_error_is_the_gap_of_each_bin_by_its_share() -> None:
    # one bin of three answers: |0.8 - 2/3|; one of an answer: |0.1 - 0|
    given, right = [0.8, 0.8, 0.8, 0.1], [True, True, False, False]
    assert expected_calibration_error(given, right) == pytest.approx(0.75 * (0.8 - 2 / 3) + 0.25 * 0.1)
    assert expected_calibration_error([1.0], [True]) == 0.0


def test_nothing_can_be_calibrated_on_nothing_or_on_what_misleads() -> None:
    with pytest.raises(ValueError, match="no answers to calibrate on"):
        fit([], [])
    with pytest.raises(ValueError, match="no answers to compare"):
        expected_calibration_error([], [])
    with pytest.raises(ValueError, match="slope must be in"):
        fit([-1.0, -2.0] * 20, [False, True] * 20)


@pytest.mark.parametrize(
    ("stated", "message"),
    [
        ({"span": [1.0, 0.0]}, "must have span and abstention"),
        ({"span": [1.0, 0.0], "abstention": [1.0]}, "must have span and abstention"),
        ({"span": [-1.0, 0.0], "abstention": [1.0, 0.0]}, "slope must be in"),
        ({"span": [1.0, 101.0], "abstention": [1.0, 0.0]}, "intercept must be in"),
        ({"span": [1.0, math.nan], "abstention": [1.0, 0.0]}, "intercept must be in"),
    ],
)
def test_a_model_with_a_calibration_out_of_range_is_refused(
    tmp_path: Path, stated: dict[str, list[float]], message: str
) -> None:
    artifact.save(tiny_models.pointer().model, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"confidence": stated}))
    with pytest.raises(ArtifactError, match=message):
        artifact.load(tmp_path)


def test_the_calibration_is_written_and_goes_with_its_bias(tmp_path: Path) -> None:
    artifact.save(tiny_models.pointer().model, tmp_path)
    confidence = Confidence(Sigmoid(1.5, 0.5), Sigmoid(2.0, -0.5))
    artifact.set_confidence(tmp_path, confidence)
    settings = json.loads((tmp_path / "config.json").read_text())
    assert Confidence.of(settings["confidence"]) == confidence
    artifact.set_abstention_bias(tmp_path, 0.25)
    assert json.loads((tmp_path / "config.json").read_text())["confidence"] is None
