"""OpenVINO encodes for the bundled reader: what PyTorch does, each pair alone."""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import evenmesh_models
from evenmesh_generator.domain import Augmentation, Decoding, GenerationRequest, Passage, RelevanceRequest
from evenmesh_generator.pointer import artifact, compiled_encoder, conversion
from evenmesh_generator.pointer.compiled_encoder import CompiledPointerEncoder
from evenmesh_generator.pointer.modeling import PointerForConditionalGeneration
from evenmesh_generator.pointer.reader import PointerReader
from evenmesh_generator.pointer.tokenization import LONGEST_PAIR, PairTokenizer
from evenmesh_generator.ports import Cancellation
from evenmesh_generator.runtime.assembly import assemble
from evenmesh_generator.runtime.engine import LanguageEngine
from evenmesh_generator.runtime.networks.pair_encoders import (
    CompiledPairEncoder,
    EncodedPair,
    TorchPairEncoder,
)
from evenmesh_generator.runtime.options import EngineOptions
from evenmesh_kit.compute import cpu_engine
from evenmesh_kit.compute.conversions import Conversions
from evenmesh_kit.compute.cpu_engine import EngineError
from evenmesh_kit.compute.model_files import ModelError
from tests.support import padded_rows
from tests.support.tiny_engines import TEMPLATES, write

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        cpu_engine.installed_version() is None, reason="OpenVINO is not installed, or not usable"
    ),
    pytest.mark.skipif(not evenmesh_models.reader().is_dir(), reason="no bundled weights in this checkout"),
]

LENGTHS = (3, 4, 37, 120, LONGEST_PAIR)
TEXTS = (
    "Water boils at 100 degrees Celsius at sea level, and freezes at 0 degrees.",
    "Hamlet is a play by William Shakespeare about the prince of Denmark.",
    "Oil the chain every 200 kilometres.",
)
PASSAGES = tuple(Passage(str(at), "", text) for at, text in enumerate(TEXTS))
QUESTIONS = ("At what temperature does water boil?", "Who wrote Hamlet?", "How often is a chain oiled?")

Open = Callable[..., CompiledPointerEncoder]


@pytest.fixture(scope="module")
def model() -> PointerForConditionalGeneration:
    return artifact.load()


@pytest.fixture(scope="module")
def words(model: PointerForConditionalGeneration) -> NDArray[np.float32]:
    return model.encoder.embeddings.word_embeddings.weight.detach().numpy()  # type: ignore[union-attr, no-any-return]


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Conversions:
    return Conversions.of_user(tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="module")
def open_encoder(words: NDArray[np.float32], kept: Conversions) -> Open:
    def opened(parallel: int = 1) -> CompiledPointerEncoder:
        return CompiledPointerEncoder(
            evenmesh_models.reader(), words, bfloat16=False, parallel=parallel, conversions=kept
        )

    return opened


def _pairs(lengths: tuple[int, ...]) -> tuple[list[tuple[int, ...]], list[int]]:
    """Rows of drawn words, and where their passages begin."""
    rng = np.random.default_rng(5)
    rows = [tuple(rng.integers(1_000, 30_000, length).tolist()) for length in lengths]
    return rows, [max(1, length // 4) for length in lengths]


def _values(pair: EncodedPair) -> tuple[torch.Tensor, ...]:
    return pair.projected, pair.copy_keys, pair.states


def test_it_encodes_what_pytorch_does(model: PointerForConditionalGeneration, open_encoder: Open) -> None:
    rows, heads = _pairs(LENGTHS)
    config = model.config
    compiled = CompiledPairEncoder(
        open_encoder(), layers=config.decoder_layers, heads=config.num_attention_heads, dtype=torch.float32
    )
    with torch.inference_mode():
        plain = dict(TorchPairEncoder(model, dtype=torch.float32, batch_tokens=10_000).encode(rows, heads))
        found = dict(compiled.encode(rows, heads))
    assert sorted(plain) == sorted(found) == list(range(len(rows)))
    for place, pair in plain.items():
        for one, other in zip(_values(pair), _values(found[place]), strict=True):
            assert one.shape == other.shape
            torch.testing.assert_close(other, one, atol=2e-3, rtol=2e-3)


def test_no_pair_depends_on_the_others_or_on_how_many_are_encoded_at_a_time(open_encoder: Open) -> None:
    rows, heads = _pairs(LENGTHS)
    together = open_encoder(parallel=3).encode(rows, heads)
    one_by_one = open_encoder()
    for row, head, found in zip(rows, heads, together, strict=True):
        (alone,) = one_by_one.encode([row], [head])
        assert all(np.array_equal(one, other) for one, other in zip(alone, found, strict=True))


def test_padded_pairs_of_one_size_are_encoded_together(
    open_encoder: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, heads = _pairs((33, 48, 90, 40, 41, 95, 36))
    alone = open_encoder().encode(rows, heads)
    computed = padded_rows.computed_together(monkeypatch)
    encoder = open_encoder(parallel=2)
    computed.clear()
    found = encoder.encode(rows, heads)
    assert sorted(computed) == [1, 1, 2, 3]
    for one, other in zip(alone, found, strict=True):
        for wanted, values in zip(one, other, strict=True):
            np.testing.assert_allclose(values, wanted, atol=2e-3, rtol=2e-3)


def test_a_wrong_conversion_is_not_used(open_encoder: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled_encoder, "_LEAST_COSINE", {False: 1.1, True: 1.1})
    with pytest.raises(
        EngineError, match="does not compute what PyTorch does: 3 encoded tokens have a cosine"
    ):
        open_encoder()


def test_what_is_no_pointer_model_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    given = json.dumps({"source": str(tmp_path), "folder": str(tmp_path / "kept")})
    monkeypatch.setattr("sys.stdin", io.StringIO(given))
    assert conversion.main() == 1
    said = capsys.readouterr().out
    assert said.startswith("the pointer model is incomplete: ")
    assert "\n" not in said


@pytest.fixture
def assembled(tmp_path: Path) -> Iterator[Callable[..., LanguageEngine]]:
    engines: list[LanguageEngine] = []

    def start(**options: object) -> LanguageEngine:
        given = {"dtype": "float32", "device": "cpu", "home": tmp_path, **options}
        engines.append(assemble("evenmesh-pointer", EngineOptions(**given), TEMPLATES))  # type: ignore[arg-type]
        return engines[-1]

    yield start
    for engine in engines:
        engine.close()


def test_answers_and_judgements_are_pytorchs(
    assembled: Callable[..., LanguageEngine], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="evenmesh.generator.runtime"):
        engine = assembled(cpu_engine="openvino", parallel=2)
    assert "encodes in float32, on up to 2 processors at a time" in caplog.text
    reader = PointerReader(artifact.load(), PairTokenizer(evenmesh_models.minilm()))
    passages = [("", text) for text in TEXTS]
    for question in QUESTIONS:
        encodings = reader.encode(question, passages)
        expected = reader.answer(encodings, max_new_tokens=16)
        request = GenerationRequest(
            question,
            PASSAGES,
            augmentation=Augmentation.FUSION_IN_DECODER,
            decoding=Decoding(max_new_tokens=16),
        )
        found, _ = write(engine, request)
        assert (found.text, found.completion_tokens) == (expected.text, expected.tokens)
        assert found.log_probability == pytest.approx(expected.log_prob, abs=1e-2)
        judged = engine.judge(RelevanceRequest(question, PASSAGES), Cancellation()).result(timeout=120)
        assert judged == pytest.approx(reader.verdicts([encodings])[0], abs=1e-2)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_where_openvino_cannot_pytorch_encodes_unless_it_is_required(
    assembled: Callable[..., LanguageEngine],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    dtype: str,
) -> None:
    if dtype == "float32":
        monkeypatch.setattr(compiled_encoder, "_LEAST_COSINE", {False: 1.1, True: 1.1})
    why = "have a cosine of" if dtype == "float32" else "in float32 or bfloat16, not in float16"
    with pytest.raises(ModelError, match=why):
        assembled(cpu_engine="openvino", dtype=dtype)
    assembled(dtype=dtype)
    assert "PyTorch encodes for" in caplog.text


_STARTS = """
import sys
from pathlib import Path
from evenmesh_generator.prompts import TemplateLibrary
from evenmesh_generator.runtime.assembly import assemble
from evenmesh_generator.runtime.options import EngineOptions

options = EngineOptions(cpu_engine="openvino", device="cpu", dtype="float32", home=Path(sys.argv[1]))
assemble("evenmesh-pointer", options, TemplateLibrary.bundled()).close()
print("transformers" in sys.modules)
"""


def test_the_bundled_model_starts_without_transformers(tmp_path: Path) -> None:
    """Importing it takes longer than all else of a start."""
    ran = subprocess.run(
        [sys.executable, "-c", _STARTS, tmp_path], capture_output=True, text=True, check=False
    )
    assert ran.stdout == "False\n", ran.stderr
