"""Settings of the reranker on model servers, and what is said of wrong ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from evenmesh_kit.settings import SettingsError, load
from evenmesh_reranker.settings import RerankerSettings

URL = "http://127.0.0.1:8080"


def given(monkeypatch: pytest.MonkeyPatch, **values: str) -> RerankerSettings:
    for name, value in values.items():
        monkeypatch.setenv(f"EVENMESH_RERANKER_{name}", value)
    return load(RerankerSettings)


def test_servers_may_be_there_beside_another_default(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = given(monkeypatch, REMOTE_URLS=f"{URL}, https://example.org/v2")
    assert settings.remote_urls == (URL, "https://example.org/v2")
    assert (settings.default_reranker, settings.remote_server, settings.remote_scores) == (
        "cross-encoder",
        "tei",
        "probability",
    )
    assert (settings.remote_fusion, settings.remote_batch_size) == (0.0, 32)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"DEFAULT_RERANKER": "remote"}, "DEFAULT_RERANKER=remote: needs model servers: set .*REMOTE_URLS$"),
        ({"REMOTE_URLS": URL, "REMOTE_SERVER": "cohere"}, "REMOTE_MODEL=: must name a model, which cohere"),
        ({"REMOTE_URLS": URL, "REMOTE_SERVER": "jina"}, "REMOTE_MODEL=: must name a model, which jina"),
        ({"REMOTE_SERVER": "magic"}, "REMOTE_SERVER=magic: "),
        ({"REMOTE_SCORES": "stars"}, "REMOTE_SCORES=stars: "),
        ({"REMOTE_FUSION": "11"}, "REMOTE_FUSION=11: .*<= 10"),
        ({"REMOTE_FUSION": "nan"}, "REMOTE_FUSION=nan: "),
        ({"REMOTE_BATCH_SIZE": "0"}, "REMOTE_BATCH_SIZE=0: .*>= 1"),
        ({"REMOTE_BATCH_CHARACTERS": "10"}, "REMOTE_BATCH_CHARACTERS=10: .*>= 1024"),
        ({"REMOTE_CHECK_S": "0"}, r"REMOTE_CHECK_S=0: .*>= 0\.1"),
        ({"REMOTE_IN_FLIGHT": "0"}, "REMOTE_IN_FLIGHT=0: .*>= 1"),
        ({"REMOTE_IDLE_S": "-1"}, "REMOTE_IDLE_S=-1: "),
        ({"REMOTE_URLS": "localhost:8080"}, "REMOTE_URLS=.*is not a base URL"),
        ({"REMOTE_MODEL": "m" * 257}, "REMOTE_MODEL=m+: .*256"),
    ],
)
def test_a_wrong_value_names_its_variable(
    monkeypatch: pytest.MonkeyPatch, values: dict[str, str], message: str
) -> None:
    with pytest.raises(SettingsError, match=f"^EVENMESH_RERANKER_{message}") as error:
        given(monkeypatch, **values)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["REMOTE_API_KEY", "REMOTE_CA"])
def test_a_file_that_is_not_there_is_named_at_the_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    settings = given(monkeypatch, REMOTE_URLS=URL, **{name: str(tmp_path / "none")})
    with pytest.raises(SettingsError, match=f"^EVENMESH_RERANKER_{name}: .*none"):
        settings.remote_client()
