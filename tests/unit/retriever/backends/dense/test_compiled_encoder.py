"""Encoders in OpenVINO: PyTorch's vectors, the same to the bit in any company, without PyTorch."""

import json
import logging
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, Pooling, StaticEmbedding, Transformer
from tokenizers import Tokenizer

from evenmesh_kit.compute import converting, cpu_engine
from evenmesh_kit.compute.conversions import Conversions
from evenmesh_kit.compute.cpu_engine import EngineError
from evenmesh_retriever.backends.dense import compiled_encoder, conversion
from evenmesh_retriever.backends.dense.compiled_encoder import CompiledEncoder
from evenmesh_retriever.backends.dense.in_process import encoder_in_process
from evenmesh_retriever.backends.dense.model_options import ModelOptions
from evenmesh_retriever.backends.dense.model_options import Pooling as Pool
from evenmesh_retriever.backends.dense.sentence_encoder import SentenceEncoder
from evenmesh_retriever.ports import CannotStart
from tests.support import padded_rows
from tests.unit.retriever.backends.dense.conftest import WORDS

needs_openvino = pytest.mark.skipif(
    cpu_engine.installed_version() is None, reason="openvino is not installed"
)
TEXTS = ["a red lamp at night", "oil the chain " * 5, "the chain at night", "", " [SEP] Ä\nlamp "]


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Conversions:
    """Conversions, made in this process: another one would import PyTorch for each."""

    def convert(_: str, given: Mapping[str, Any], folder: Path) -> None:
        options = ModelOptions(**given["options"])
        try:
            encoder = SentenceEncoder(given["model"], options, device="cpu", precision="fp32")
        except CannotStart as error:
            raise EngineError(str(error)) from None
        conversion.convert(encoder, folder)

    monkeypatch.setattr(converting, "convert", convert)
    return Conversions(tmp_path / "openvino")


@needs_openvino
@pytest.mark.parametrize("pooling", ["", "cls", "max", "lasttoken"])
def test_vectors_are_pytorchs(plain: Path, kept: Conversions, pooling: Pool) -> None:
    options = ModelOptions(pooling, "query: ")
    exact = SentenceEncoder(str(plain), options, precision="fp32")
    compiled = CompiledEncoder(str(plain), options, precision="fp32", conversions=kept)
    for name in ("name", "fingerprint", "dimension", "max_tokens", "precision", "device"):
        assert getattr(compiled, name) == getattr(exact, name)
    np.testing.assert_allclose(compiled.encode_query(TEXTS[0]), exact.encode_query(TEXTS[0]), atol=1e-5)
    np.testing.assert_allclose(
        compiled.encode_passages(TEXTS, lambda _: None),
        exact.encode_passages(TEXTS, lambda _: None),
        atol=1e-5,
    )
    assert compiled.count_tokens(TEXTS) == sum(exact.count_tokens([text]) for text in TEXTS)


@needs_openvino
def test_layers_behind_the_pooling_are_computed(plain: Path, tmp_path: Path, kept: Conversions) -> None:
    torch.manual_seed(1)
    model = SentenceTransformer(
        modules=[Transformer(str(plain)), Pooling(16, pooling_mode="mean"), Dense(16, 5)], device="cpu"
    )
    model.save(str(tmp_path / "deep"))
    exact = SentenceEncoder(str(tmp_path / "deep"), precision="fp32")
    compiled = CompiledEncoder(str(tmp_path / "deep"), ModelOptions(), precision="fp32", conversions=kept)
    assert compiled.dimension == 5
    np.testing.assert_allclose(compiled.encode_query("a lamp"), exact.encode_query("a lamp"), atol=1e-5)


@needs_openvino
def test_a_vector_is_the_same_to_the_bit_in_any_company(plain: Path, kept: Conversions) -> None:
    """In the default number type, unlike PyTorch's, whose batches have one length."""
    compiled = CompiledEncoder(str(plain), ModelOptions(), conversions=kept)
    texts = [" ".join(WORDS[at % 7 :][: at + 1]) for at in range(9)]
    together = compiled.encode_passages(texts, lambda _: None)
    for at in (0, 4, 8):
        np.testing.assert_array_equal(compiled.encode_passages([texts[at]], lambda _: None)[0], together[at])


@needs_openvino
def test_padded_texts_of_one_size_are_encoded_together(
    plain: Path, kept: Conversions, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [*TEXTS, *(f"a lamp at night {at}" for at in range(20))]
    alone = CompiledEncoder(str(plain), ModelOptions(), precision="fp32", conversions=kept)
    wanted = alone.encode_passages(texts, lambda _: None)
    computed = padded_rows.computed_together(monkeypatch)
    encoder = CompiledEncoder(str(plain), ModelOptions(), precision="fp32", conversions=kept)
    computed.clear()
    done: list[int] = []
    np.testing.assert_allclose(encoder.encode_passages(texts, done.append), wanted, atol=1e-5)
    np.testing.assert_allclose(encoder.encode_query(TEXTS[0]), alone.encode_query(TEXTS[0]), atol=1e-5)
    assert max(computed) == 4
    assert done == [16, 25]


@needs_openvino
def test_other_files_or_options_are_converted_anew(plain: Path, kept: Conversions, tmp_path: Path) -> None:
    def conversions() -> int:
        return len(list((tmp_path / "openvino").iterdir()))

    copy = tmp_path / "copy"
    copy.mkdir()
    for path in plain.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    for options, count in ((ModelOptions(), 1), (ModelOptions(), 1), (ModelOptions("cls"), 2)):
        CompiledEncoder(str(copy), options, conversions=kept)
        assert conversions() == count
    config = json.loads((copy / "config.json").read_bytes())
    (copy / "config.json").write_text(json.dumps(config | {"layer_norm_eps": 1e-5}))
    CompiledEncoder(str(copy), ModelOptions(), conversions=kept)
    assert conversions() == 3


@needs_openvino
def test_a_conversion_that_computes_something_else_is_refused(
    plain: Path, kept: Conversions, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = conversion.SentenceEncoder.vectors
    with monkeypatch.context() as patched:
        patched.setattr(conversion.SentenceEncoder, "vectors", lambda *given: -honest(*given))
        with pytest.raises(EngineError, match=r"does not compute what PyTorch does: .* cosine of -1\.0000$"):
            CompiledEncoder(str(plain), ModelOptions(), conversions=kept)


@needs_openvino
def test_a_model_without_a_transformer_is_refused(plain: Path, kept: Conversions, tmp_path: Path) -> None:
    static = StaticEmbedding(Tokenizer.from_file(str(plain / "tokenizer.json")), embedding_dim=8)
    SentenceTransformer(modules=[static], device="cpu").save(str(tmp_path / "static"))
    with pytest.raises(EngineError, match="no transformer with a fast tokenizer"):
        CompiledEncoder(str(tmp_path / "static"), ModelOptions(), conversions=kept)
    found = encoder_in_process(str(tmp_path / "static"), conversions=kept)
    assert isinstance(found, SentenceEncoder)


@needs_openvino
def test_a_tokenizer_that_may_give_one_token_is_refused(
    plain: Path, kept: Conversions, tmp_path: Path
) -> None:
    """OpenVINO would take the position of that token for those of all texts to come."""
    bare = tmp_path / "bare"
    bare.mkdir()
    for path in plain.iterdir():
        (bare / path.name).write_bytes(path.read_bytes())
    tokenizer = json.loads((bare / "tokenizer.json").read_bytes())
    (bare / "tokenizer.json").write_text(json.dumps(tokenizer | {"post_processor": None}))
    with pytest.raises(EngineError, match=r"fewer than two tokens|otherwise than its file"):
        CompiledEncoder(str(bare), ModelOptions(), conversions=kept)


@needs_openvino
def test_a_folder_that_cannot_be_written_leaves_it_to_pytorch(
    plain: Path, kept: Conversions, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("not a folder")
    with caplog.at_level(logging.WARNING):
        found = encoder_in_process(str(plain), conversions=Conversions(tmp_path / "file" / "kept"))
    assert isinstance(found, SentenceEncoder)
    assert "its conversion cannot be kept" in caplog.text


_WITHOUT_PYTORCH = """
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from evenmesh_kit.compute.conversions import Conversions
from evenmesh_retriever.backends.dense.in_process import encoder_in_process
encoder = encoder_in_process(sys.argv[1], device="cpu", conversions=Conversions(Path(sys.argv[2])))
loaded = {"torch", "transformers", "sentence_transformers"} & set(sys.modules)
print(encoder.fingerprint, len(encoder.encode_query("a lamp")), sorted(loaded))
"""


@needs_openvino
def test_another_process_converts_and_this_one_needs_no_pytorch(plain: Path, tmp_path: Path) -> None:
    """The processes as they are: a service that starts, converts, and serves."""
    command = [sys.executable, "-c", _WITHOUT_PYTORCH, str(plain), str(tmp_path / "openvino")]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=240)
    assert done.stdout.split(maxsplit=2) == [SentenceEncoder(str(plain)).fingerprint, "16", "[]\n"]


def test_an_engine_that_is_not_installed_is_named(
    plain: Path, kept: Conversions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu_engine, "installed_version", lambda: None)
    with pytest.raises(CannotStart, match=r"^S='openvino': OpenVINO is not installed"):
        encoder_in_process(str(plain), engine="openvino", engine_setting="S", conversions=kept)
    by_torch = encoder_in_process(str(plain), engine="auto", conversions=kept)
    assert isinstance(by_torch, SentenceEncoder)


def test_what_openvino_cannot_compute_is_pytorchs(
    plain: Path, kept: Conversions, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise EngineError("no such operation")

    monkeypatch.setattr(cpu_engine, "installed_version", lambda: "2026.4.1")
    monkeypatch.setattr(compiled_encoder, "CompiledEncoder", fail)
    with caplog.at_level(logging.WARNING):
        found = encoder_in_process(str(plain), conversions=kept).encode_query("a red lamp")
    np.testing.assert_array_equal(found, SentenceEncoder(str(plain)).encode_query("a red lamp"))
    assert "no such operation" in caplog.text
    with pytest.raises(CannotStart, match=r"^engine='openvino': no such operation$"):
        encoder_in_process(str(plain), engine="openvino", conversions=kept)


@pytest.mark.parametrize("engine", ["auto", "openvino"])
def test_a_missing_model_names_its_setting(kept: Conversions, engine: cpu_engine.CpuEngine) -> None:
    if engine == "openvino" and cpu_engine.installed_version() is None:
        pytest.skip("openvino is not installed")
    with pytest.raises(CannotStart, match=r"^S='/no/such/folder': no such folder"):
        encoder_in_process("/no/such/folder", setting="S", engine=engine, conversions=kept)


def test_a_required_gpu_is_looked_for(plain: Path, kept: Conversions) -> None:
    with pytest.raises(CannotStart, match=r"encoder=.*a GPU is required"):
        encoder_in_process(str(plain), setting="encoder", device="cpu", require_gpu=True, conversions=kept)


@needs_openvino
@pytest.mark.parametrize("model", ["/no/such/folder", "no-one/has-such-a-model"])
def test_that_a_model_is_missing_is_said_without_importing_pytorch(
    model: str, kept: Conversions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "evenmesh_retriever.backends.dense.sentence_encoder", None)
    with pytest.raises(CannotStart, match=rf"^S='{model}': no such folder, and not in the local"):
        encoder_in_process(model, setting="S", conversions=kept)
