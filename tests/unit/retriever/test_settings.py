"""Settings of the retriever, and what is said of wrong ones."""

import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from evenmesh_kit.settings import SettingsError, load
from evenmesh_retriever.__main__ import _load_milvus, _quotas, _triton_encoder, _web_class
from evenmesh_retriever.ports import CannotStart
from evenmesh_retriever.settings import RetrieverSettings


def test_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EVENMESH_RETRIEVER_PORT", raising=False)
    settings = load(RetrieverSettings)
    assert (settings.port, settings.encoder, settings.bm25_engine) == (7071, "all-MiniLM-L6-v2", "csr")
    assert (settings.bm25_k1, settings.bm25_b) == (1.5, 0.75)  # those of rank_bm25


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("BM25_ENGINE", "lucene"),
        ("BM25_K1", "0"),
        ("BM25_B", "1.5"),
        ("BM25_B", "nan"),
        ("THREADS", "0"),
        ("ENCODER_DEVICE", "tpu"),
        ("ENCODER_PRECISION", "int4"),
        ("DEFAULT_RETRIEVER", "splade"),
        ("MAX_INGEST_BYTES", "1"),
        ("FOLLOW_LOOK_S", "0"),
        ("FOLLOW_STALE_S", "0"),
        ("KEEP_S", "-1"),
        ("LEASE_S", "0.5"),
        ("LEASE_WAIT_S", "-1"),
    ],
)
def test_a_wrong_value_names_its_variable(monkeypatch: pytest.MonkeyPatch, variable: str, value: str) -> None:
    name = f"EVENMESH_RETRIEVER_{variable}"
    monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError, match=f"^{name}='?{value}'?: ") as error:
        load(RetrieverSettings)
    assert "\n" not in str(error.value)


def test_a_default_that_needs_an_encoder_needs_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVENMESH_RETRIEVER_ENCODER", "")
    assert load(RetrieverSettings).encoder == ""
    monkeypatch.setenv("EVENMESH_RETRIEVER_DEFAULT_RETRIEVER", "hybrid")
    with pytest.raises(SettingsError, match=r"EVENMESH_RETRIEVER_DEFAULT_RETRIEVER.*needs an encoder"):
        load(RetrieverSettings)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"HYBRID": "bm25-plus+dense"}, r"HYBRID=bm25-plus\+dense: "),  # all its scores are above 0
        ({"HYBRID": "dense+dense"}, "names a retriever twice"),
        ({"HYBRID": "dense+splade"}, "needs a SPLADE model"),
        ({"HYBRID_WEIGHTS": "1,2,3"}, "has 3 weights for 2 retrievers"),
        ({"HYBRID_WEIGHTS": "0,0"}, "has no weight above 0"),
        ({"HYBRID_WEIGHTS": "1;2"}, "HYBRID_WEIGHTS=1;2: "),
        ({"DEFAULT_RETRIEVER": "splade"}, "needs a SPLADE model"),
    ],
)
def test_what_hybrid_fuses_is_checked(
    monkeypatch: pytest.MonkeyPatch, values: dict[str, str], message: str
) -> None:
    for name, value in values.items():
        monkeypatch.setenv(f"EVENMESH_RETRIEVER_{name}", value)
    with pytest.raises(SettingsError, match=message):
        load(RetrieverSettings)


def test_a_hybrid_without_dense_needs_no_encoder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVENMESH_RETRIEVER_ENCODER", "")
    monkeypatch.setenv("EVENMESH_RETRIEVER_HYBRID", "bm25+bm25-l")
    monkeypatch.setenv("EVENMESH_RETRIEVER_HYBRID_WEIGHTS", "1,0.5")
    monkeypatch.setenv("EVENMESH_RETRIEVER_DEFAULT_RETRIEVER", "hybrid")
    settings = load(RetrieverSettings)
    assert settings.hybrid_components == ("bm25", "bm25-l")
    assert settings.hybrid_shares == (1.0, 0.5)


def test_a_tenant_has_a_share_of_the_disk_where_callers_are_known(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("EVENMESH_HOME", str(tmp_path / "not" / "there" / "yet"))
    assert _quotas(load(RetrieverSettings)).tenant_bytes.most == 0
    monkeypatch.setenv("EVENMESH_API_KEYS", str(tmp_path / "keys.toml"))
    share = _quotas(load(RetrieverSettings)).tenant_bytes
    assert share.most == shutil.disk_usage(tmp_path).total // 16
    assert share.setting == "EVENMESH_RETRIEVER_MAX_TENANT_BYTES"
    monkeypatch.setenv("EVENMESH_RETRIEVER_MAX_TENANT_BYTES", "0")
    assert _quotas(load(RetrieverSettings)).tenant_bytes.most == 0


_URLS = {"REMOTE_URLS": "http://127.0.0.1:8080"}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"ENCODER": "remote"}, "ENCODER=remote: needs model servers: set EVENMESH_RETRIEVER_REMOTE_URLS"),
        (_URLS, "ENCODER=all-MiniLM-L6-v2: is not 'remote', and EVENMESH_RETRIEVER_REMOTE_URLS is set"),
        (
            {"ENCODER": "remote", "REMOTE_SERVER": "openai", **_URLS},
            "ENCODER=remote: needs a model to ask for: set EVENMESH_RETRIEVER_REMOTE_MODEL",
        ),
        ({"REMOTE_SERVER": "magic"}, "REMOTE_SERVER=magic: "),
        ({"REMOTE_BATCH_SIZE": "4096"}, "REMOTE_BATCH_SIZE=4096: .*<= 2048"),
        ({"REMOTE_BATCH_CHARACTERS": "1"}, "REMOTE_BATCH_CHARACTERS=1: .*>= 1024"),
        ({"REMOTE_CHECK_S": "0"}, r"REMOTE_CHECK_S=0: .*>= 0\.1"),
        ({"REMOTE_URLS": "http://user:word@host"}, "REMOTE_URLS=.*must not hold a user or password"),
    ],
)
def test_settings_of_model_servers_fit_each_other(
    monkeypatch: pytest.MonkeyPatch, values: dict[str, str], message: str
) -> None:
    for name, value in values.items():
        monkeypatch.setenv(f"EVENMESH_RETRIEVER_{name}", value)
    with pytest.raises(SettingsError, match=rf"EVENMESH_RETRIEVER_{message}") as error:
        load(RetrieverSettings)
    assert "word" not in str(error.value).replace("password", "")


def test_an_encoder_of_model_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"ENCODER": "remote", "REMOTE_SERVER": "vllm", "REMOTE_MODEL": "org/m", **_URLS}
    for name, value in given.items():
        monkeypatch.setenv(f"EVENMESH_RETRIEVER_{name}", value)
    settings = load(RetrieverSettings)
    assert (settings.encoder, settings.remote_model) == ("remote", "org/m")
    assert settings.remote_urls == ("http://127.0.0.1:8080",)


def test_a_replica_follows_another_home_and_keeps_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("EVENMESH_HOME", str(tmp_path / "own"))
    assert load(RetrieverSettings).kept_in == tmp_path / "own"
    monkeypatch.setenv("EVENMESH_RETRIEVER_FOLLOW", str(tmp_path / "writer"))
    settings = load(RetrieverSettings)
    assert (settings.home, settings.kept_in) == (tmp_path / "own", tmp_path / "writer")
    monkeypatch.setenv("EVENMESH_RETRIEVER_STORE", "milvus")
    with pytest.raises(SettingsError, match="is shared by its retrievers: unset EVENMESH_RETRIEVER_FOLLOW"):
        load(RetrieverSettings)


@pytest.mark.parametrize(
    ("extra", "needs", "module", "load_"),
    [
        ("triton", "EVENMESH_RETRIEVER_ENCODER='triton://t' needs", "dense.triton_encoder", _triton_encoder),
        (
            "milvus",
            "EVENMESH_RETRIEVER_STORE='milvus' needs",
            "milvus.opening",
            lambda settings: _load_milvus(settings, None, None),
        ),
        ("web", "web sources need", "web.source", lambda _: _web_class()),
    ],
)
def test_what_a_missing_extra_brings_is_named(
    monkeypatch: pytest.MonkeyPatch,
    extra: str,
    needs: str,
    module: str,
    load_: Callable[[RetrieverSettings], object],
) -> None:
    missing = f"evenmesh_retriever.backends.{module}"
    monkeypatch.setitem(sys.modules, missing, None)
    remedy = f"in a checkout, pip install './services/retriever[{extra}]'"
    words = f"{needs} {missing}, which is not installed: {remedy}"
    with pytest.raises(CannotStart, match=f"^{re.escape(words)}$"):
        load_(RetrieverSettings(encoder="triton://t"))
