"""Settings of the generator, as people write them in the environment."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from evenmesh_generator.__main__ import GeneratorService
from evenmesh_generator.hosts.in_process import InProcessHost
from evenmesh_generator.prompts import TemplateLibrary
from evenmesh_generator.settings import GeneratorSettings, ModelSource
from evenmesh_kit.settings import SettingsError, load

PREFIX = "EVENMESH_GENERATOR_"


def _load(monkeypatch: pytest.MonkeyPatch, **variables: str) -> GeneratorSettings:
    for name, value in variables.items():
        monkeypatch.setenv(PREFIX + name, value)
    return load(GeneratorSettings)


def test_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = _load(monkeypatch)
    assert (settings.port, settings.names, settings.allow_download) == (7073, ("evenmesh-pointer",), False)


def test_a_comma_list(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = _load(monkeypatch, MODELS="flan=google/flan-t5-small, local=/models/x=y ,")
    assert settings.models == (
        ModelSource(name="flan", path="google/flan-t5-small"),
        ModelSource(name="local", path="/models/x=y"),
    )
    assert settings.names == ("evenmesh-pointer", "flan", "local")


def test_a_json_list(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = _load(
        monkeypatch,
        MODELS='[{"name": "flan", "path": "x", "template": "rankrag-answer", "instruction": true}]',
        BUNDLED="false",
    )
    assert settings.models == (
        ModelSource(name="flan", path="x", template="rankrag-answer", instruction=True),
    )
    assert settings.names == ("flan",)


def test_with_triton_names_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = _load(
        monkeypatch,
        ENGINE="triton",
        TRITON_TARGET="triton.mesh:8001",
        MODELS="flan,local=/models/x",
        BUNDLED="false",
    )
    assert settings.models == (ModelSource(name="flan"), ModelSource(name="local", path="/models/x"))
    assert (settings.engine, settings.triton_target) == ("triton", "triton.mesh:8001")
    assert settings.names == ("flan", "local")


SERVERS = {"ENGINE": "openai", "REMOTE_URLS": "http://a:8000/v1,https://b/v1"}


def test_models_of_openai_compatible_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = _load(monkeypatch, **SERVERS, MODELS="llama=meta-llama/Llama-3.1-8B-Instruct,own")
    assert settings.models == (
        ModelSource(name="llama", path="meta-llama/Llama-3.1-8B-Instruct"),
        ModelSource(name="own"),
    )
    assert settings.remote_urls == ("http://a:8000/v1", "https://b/v1")
    assert settings.names == ("llama", "own"), "their servers do not have the bundled model"
    assert settings.bundled is False


def test_a_model_may_have_servers_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    source = {
        "name": "a",
        "urls": ["http://c/v1"],
        "api": "completions",
        "context_tokens": 8192,
        "bytes_per_token": 2.5,
        "top_logprobs": 5,
        "request": {"top_k": -1},
    }
    (model,) = _load(monkeypatch, ENGINE="openai", MODELS=json.dumps([source])).models
    assert model == ModelSource.model_validate(source)


def test_a_target_without_triton_is_kept_for_later(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = _load(monkeypatch, TRITON_TARGET="[::1]:8001")
    assert (settings.engine, settings.triton_target) == ("in-process", "[::1]:8001")


def test_several_targets_of_triton_are_separated_by_commas(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = _load(monkeypatch, TRITON_TARGET="triton:8001, [::1]:8001,triton:8001")
    assert settings.triton_targets == ("triton:8001", "[::1]:8001")


def test_the_default_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _load(monkeypatch, MODELS="a=x,b=y", DEFAULT_MODEL="b").names == ("b", "evenmesh-pointer", "a")


@pytest.mark.parametrize(
    ("variables", "wrong", "words"),
    [
        ({"MODELS": "flan"}, "MODELS", "'flan' is not name=path"),
        ({"MODELS": "[{]"}, "MODELS", "not valid JSON"),
        ({"MODELS": "a=x,a=y"}, "MODELS", "the name 'a' is taken twice"),
        ({"MODELS": "evenmesh-pointer=x"}, "MODELS", "the name 'evenmesh-pointer' is taken twice"),
        ({"MODELS": "a b=x"}, "MODELS[0][name]", "pattern"),
        ({"DEFAULT_MODEL": "z"}, "DEFAULT_MODEL", "must be one of evenmesh-pointer"),
        ({"BUNDLED": "false"}, "DEFAULT_MODEL", "EVENMESH_GENERATOR_MODELS must name one"),
        ({**SERVERS}, "DEFAULT_MODEL", "EVENMESH_GENERATOR_MODELS must name one"),
        ({**SERVERS, "MODELS": "a", "BUNDLED": "true"}, "BUNDLED", "do not have the bundled model"),
        ({"ENGINE": "openai", "MODELS": "a"}, "MODELS", "EVENMESH_GENERATOR_REMOTE_URLS"),
        ({**SERVERS, "REMOTE_URLS": "a:8000", "MODELS": "a"}, "REMOTE_URLS", "http://HOST:PORT/v1"),
        ({**SERVERS, "MODELS": '[{"name": "a", "urls": ["b"]}]'}, "MODELS[0][urls]", "is not a base URL"),
        (
            {**SERVERS, "MODELS": '[{"name": "a", "request": {"n": 2}}]'},
            "MODELS[0][request]",
            "must not set n",
        ),
        ({**SERVERS, "MODELS": '[{"name": "a", "top_logprobs": 1}]'}, "MODELS[0][top_logprobs]", "2"),
        ({**SERVERS, "MODELS": '[{"name": "a", "bytes_per_token": 0}]'}, "MODELS[0][bytes_per_token]", "0.5"),
        ({**SERVERS, "MODELS": '[{"name": "a", "context_tokens": 1}]'}, "MODELS[0][context_tokens]", "16"),
        ({**SERVERS, "MODELS": '[{"name": "a", "api": "x"}]'}, "MODELS[0][api]", "'chat' or 'completions'"),
        ({**SERVERS, "MODELS": "a", "REMOTE_START_S": "0"}, "REMOTE_START_S", "> 0"),
        ({**SERVERS, "MODELS": "a", "REMOTE_PROBE_S": "0"}, "REMOTE_PROBE_S", "> 0"),
        ({**SERVERS, "MODELS": "a", "REMOTE_PROBE_INTERVAL_S": "0"}, "REMOTE_PROBE_INTERVAL_S", "> 0"),
        ({"MODELS": '[{"name": "a", "path": "x", "api": "chat"}]'}, "MODELS", "only the engine openai uses"),
        ({"MODELS": '[{"name": "a"}]'}, "MODELS", "'a' has no path; only models of servers can do without"),
        ({"ENGINE": "vllm"}, "ENGINE", "'in-process', 'triton' or 'openai'"),
        ({"ENGINE": "triton"}, "TRITON_TARGET", "host:port"),
        ({"ENGINE": "triton", "TRITON_TARGET": "triton"}, "TRITON_TARGET", "host:port"),
        ({"ENGINE": "triton", "TRITON_TARGET": "a:1,b"}, "TRITON_TARGET", "host:port"),
        ({"ENGINE": "triton", "TRITON_TARGET": ","}, "TRITON_TARGET", "host:port"),
        ({"TRITON_TARGET": ",".join(f"h{n}:1" for n in range(65))}, "TRITON_TARGET", "at most 64"),
        ({"TRITON_RESOLVE_INTERVAL_S": "0"}, "TRITON_RESOLVE_INTERVAL_S", "> 0"),
        ({"TRITON_IN_FLIGHT": "0"}, "TRITON_IN_FLIGHT", "1"),
        ({"TRITON_PROBE_INTERVAL_S": "0"}, "TRITON_PROBE_INTERVAL_S", "0"),
        ({"MAX_ROWS": "0"}, "MAX_ROWS", "1"),
        ({"CACHE_BYTES": "-1"}, "CACHE_BYTES", "0"),
        ({"DTYPE": "int4"}, "DTYPE", "bfloat16"),
        ({"WORKERS": "0"}, "WORKERS", "1"),
        ({"DELTA_INTERVAL_MS": "-1"}, "DELTA_INTERVAL_MS", "0"),
    ],
)
def test_wrong_values_name_their_variable(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], wrong: str, words: str
) -> None:
    with pytest.raises(SettingsError) as caught:
        _load(monkeypatch, **variables)
    line = str(caught.value)
    assert line.startswith(f"{PREFIX}{wrong}=")
    assert words in line
    assert "\n" not in line


def test_a_model_may_run_on_ctranslate2(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = _load(monkeypatch, MODELS='[{"name": "t5", "path": "/models/t5", "engine": "ctranslate2"}]')
    assert settings.models[0].engine == "ctranslate2"
    with pytest.raises(SettingsError, match="engine"):
        _load(monkeypatch, MODELS='[{"name": "t5", "path": "/models/t5", "engine": "onnx"}]')


def test_templates_of_ones_own_are_looked_at_before_anything_is_loaded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "mine.txt").write_text("{{ question }}", encoding="utf-8")
    settings = _load(monkeypatch, TEMPLATES=str(tmp_path))
    with pytest.raises(SettingsError, match=r"EVENMESH_GENERATOR_TEMPLATES: .*mine\.txt"):
        GeneratorService(settings)
    (tmp_path / "mine.txt").rename(tmp_path / "mine.v1.txt")
    GeneratorService(settings)


def test_a_generator_before_triton_needs_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _load(monkeypatch, REQUIRE_GPU="true").require_gpu
    with pytest.raises(SettingsError, match=r"^EVENMESH_GENERATOR_REQUIRE_GPU=.*the server has the GPU"):
        _load(monkeypatch, ENGINE="triton", TRITON_TARGET="triton:8001")


def test_a_gpu_that_is_required_and_not_there_stops_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the setting, and says why CUDA cannot start."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", None)
    host = InProcessHost(GeneratorSettings(require_gpu=True), TemplateLibrary.bundled())
    with pytest.raises(
        SettingsError, match=r"^EVENMESH_GENERATOR_DEVICE='auto': a GPU is required.*VARIANT=cuda"
    ):
        host._load_bundled("evenmesh-pointer")
