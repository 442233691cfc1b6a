import os
from pathlib import Path

import pytest
from tritonclient.grpc.model_config_pb2 import ModelConfig

from evenmesh_generator.settings import GeneratorSettings
from evenmesh_generator.triton.__main__ import main
from evenmesh_generator.triton.models import embedder, judge, language_model, served_models
from evenmesh_generator.triton.repository import TritonModelEntry, read_config, write_model, write_repository
from evenmesh_generator.triton.settings import TritonSettings
from evenmesh_kit.compute.model_files import ModelError
from evenmesh_kit.settings import SettingsError, load


def parameter(config: ModelConfig, name: str) -> str:
    return str(config.parameters[name].string_value)


@pytest.fixture
def t5(tmp_path: Path) -> Path:
    """What of a T5 its repository needs."""
    folder = tmp_path / "t5"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "t5", "is_encoder_decoder": true}')
    return folder


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    """What of a Llama its repository needs."""
    folder = tmp_path / "llama"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "llama", "architectures": ["LlamaForCausalLM"]}')
    return folder


def test_a_repository_has_a_folder_for_each_model(tmp_path: Path, t5: Path, llama: Path) -> None:
    models = [
        language_model("small", t5, dtype="float32"),
        judge("small", "/p"),
        language_model("chat", llama),
    ]
    write_repository([*models, embedder("encoder", "")], tmp_path / "out")
    found = {path.parent.name: read_config(path) for path in (tmp_path / "out").glob("*/config.pbtxt")}
    assert sorted(found) == ["chat", "encoder", "small", "small.score_relevance"]
    assert all(config.name == name for name, config in found.items())
    assert all((tmp_path / "out" / name / "1" / "model.py").is_file() for name in found)
    assert parameter(found["small"], "model_path") == str(t5)
    assert parameter(found["small"], "dtype") == "float32"
    assert parameter(found["small"], "max_rows") == "64"
    assert parameter(found["small.score_relevance"], "generating_model") == "small"
    assert parameter(found["small.score_relevance"], "packages") == "/p"
    assert found["chat"].model_transaction_policy.decoupled
    assert found["encoder"].HasField("dynamic_batching")


def test_another_user_can_read_a_repository_whatever_the_umask(tmp_path: Path, t5: Path) -> None:
    before = os.umask(0o077)
    try:
        write_repository([language_model("small", t5), judge("small", "/p")], tmp_path / "out")
        write_model(TritonModelEntry("small", "encoder_decoder", version=2), tmp_path / "out")
    finally:
        os.umask(before)
    paths = [tmp_path / "out", *(tmp_path / "out").rglob("*")]
    assert {(path.is_dir(), path.stat().st_mode & 0o777) for path in paths} == {(True, 0o755), (False, 0o644)}


def test_what_was_there_is_replaced(tmp_path: Path, t5: Path) -> None:
    write_repository([language_model("old", t5)], tmp_path / "out")
    write_repository([language_model("new", t5)], tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["new"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "t5"]


def test_a_version_comes_beside_those_there_are(tmp_path: Path, t5: Path) -> None:
    first = language_model("small", t5)
    write_model(first, tmp_path / "out")
    folder = write_model(
        TritonModelEntry(first.name, first.template, {**first.parameters, "dtype": "bfloat16"}, version=2),
        tmp_path / "out",
    )
    assert sorted(path.name for path in folder.iterdir()) == ["1", "2", "config.pbtxt"]
    assert parameter(read_config(folder / "config.pbtxt"), "dtype") == "bfloat16"


def test_mistakes_are_named(tmp_path: Path, t5: Path) -> None:
    with pytest.raises(ValueError, match="no parameter 'colour'; there are batch_tokens"):
        write_model(language_model("small", t5, colour="red"), tmp_path / "out")
    with pytest.raises(ValueError, match="no template 'x'; there are decoder_only, "):
        write_model(TritonModelEntry("small", "x"), tmp_path / "out")
    with pytest.raises(ValueError, match="two models are called 'small'"):
        write_repository([language_model("small", t5)] * 2, tmp_path / "out")
    with pytest.raises(ModelError, match=r"no usable config\.json"):
        language_model("small", tmp_path)
    (tmp_path / "config.pbtxt").write_text("name: ")
    with pytest.raises(ValueError, match=r"config\.pbtxt"):
        read_config(tmp_path / "config.pbtxt")


def test_the_generator_s_settings_say_what_is_served(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, t5: Path, llama: Path
) -> None:
    monkeypatch.setenv("EVENMESH_GENERATOR_MODELS", f"small={t5},chat={llama}")
    monkeypatch.setenv("EVENMESH_GENERATOR_DTYPE", "bfloat16")
    monkeypatch.setenv("EVENMESH_GENERATOR_MAX_INPUT_TOKENS", "300")
    monkeypatch.setenv("EVENMESH_GENERATOR_DEFAULT_MODEL", "small")
    monkeypatch.setenv("EVENMESH_TRITON_THREADS", "3")
    monkeypatch.setenv("EVENMESH_TRITON_EMBEDDERS", "encoder=, other=/o")
    models = served_models(load(TritonSettings), load(GeneratorSettings), "/p")
    assert [(model.name, model.template) for model in models] == [
        ("small", "encoder_decoder"),
        ("small.score_relevance", "score_relevance"),
        ("evenmesh-pointer", "encoder_decoder"),
        ("evenmesh-pointer.score_relevance", "score_relevance"),
        ("chat", "decoder_only"),
        ("chat.score_relevance", "score_relevance"),
        ("encoder", "embed"),
        ("other", "embed"),
    ]
    small, other = models[0].parameters, models[-1].parameters
    assert (small["model_name"], small["model_path"], small["packages"]) == ("small", str(t5), "/p")
    assert (small["dtype"], small["max_input_tokens"], small["threads"]) == ("bfloat16", "300", "3")
    assert (other["model_path"], other["dtype"]) == ("/o", "bfloat16")
    write_repository(models, tmp_path / "out")


def test_a_model_that_is_not_there_is_reported_with_its_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVENMESH_GENERATOR_MODELS", "small=org/nothing-of-the-kind")
    with pytest.raises(SettingsError, match=r"EVENMESH_GENERATOR_MODELS: model 'small'.*ALLOW_DOWNLOAD=true"):
        served_models(load(TritonSettings), load(GeneratorSettings), "")


def test_the_command_writes_one(tmp_path: Path, t5: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    options = [
        "--model",
        f"small={t5}",
        "--model",
        "bundled=",
        "--embed",
        "encoder=",
        "--set",
        "dtype=float16",
    ]
    assert main(["repository", "--output", str(out), *options]) == 0
    assert parameter(read_config(out / "small" / "config.pbtxt"), "dtype") == "float16"
    assert parameter(read_config(out / "bundled" / "config.pbtxt"), "model_path") == ""
    assert (
        "small, small.score_relevance, bundled, bundled.score_relevance, encoder" in capsys.readouterr().out
    )
    assert main(["repository", "--output", str(out)]) == 1
    assert "needs a model" in capsys.readouterr().err
    assert main(["repository", "--output", str(out), "--model", f"small={t5}", "--set", "colour=red"]) == 1
    assert "no parameter 'colour'" in capsys.readouterr().err
