"""The way from a generator or a retriever to a Triton server over TLS: checked at the start, trusted by both."""

# ruff: noqa: N802 - gRPC names methods as the contract does

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import trustme
from tritonclient.grpc import model_config_pb2, service_pb2, service_pb2_grpc

from evenmesh.wire.certificates import Certificates, channel_credentials
from evenmesh.wire.errors import MeshError
from evenmesh_generator.backends.triton.client import TritonClient
from evenmesh_generator.settings import GeneratorSettings
from evenmesh_generator.triton.settings import TritonSettings
from evenmesh_kit.settings import SettingsError, load
from evenmesh_mesh import MeshSettings
from evenmesh_mesh.services import GeneratorEngine, services_with
from evenmesh_mesh.settings import service_environment
from evenmesh_retriever.__main__ import _load_encoder
from evenmesh_retriever.ports import CannotStart
from evenmesh_retriever.settings import RetrieverSettings
from tests.support import triton_models
from tests.support.triton_server import TritonServer, skip_where_impossible


@dataclass(frozen=True)
class Files:
    """A certificate, its key and who signed it."""

    chain: Path
    key: Path
    authorities: Path

    @classmethod
    def write(cls, folder: Path, authority: trustme.CA) -> Files:
        folder.mkdir()
        issued = authority.issue_cert("127.0.0.1", "triton.mesh")
        files = cls(folder / "cert.pem", folder / "key.pem", folder / "ca.pem")
        files.chain.write_bytes(b"".join(part.bytes() for part in issued.cert_chain_pems))
        files.key.write_bytes(issued.private_key_pem.bytes())
        files.authorities.write_bytes(authority.cert_pem.bytes())
        return files

    @property
    def settings(self) -> dict[str, Any]:
        """As settings of a generator."""
        return {
            "triton_ssl": True,
            "triton_root_certificates": self.authorities,
            "triton_certificate_chain": self.chain,
            "triton_private_key": self.key,
        }


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


async def _started(target: str, *, within_s: float = 2, **fields: Any) -> bool:
    """Starts the Triton side of a generator with its model, and says that the model can be asked."""
    async with triton_models.opened(target, "odd", triton_start_s=within_s, **fields) as (model,):
        return model.up


async def test_server_and_generator_show_each_other_who_they_are(
    tmp_path: Path, authority: trustme.CA
) -> None:
    skip_where_impossible()
    files = Files.write(tmp_path / "triton-certs", authority)
    mine = Files.write(tmp_path / "generator-certs", authority)
    forged = Files.write(tmp_path / "forged-certs", trustme.CA())
    repository, home = tmp_path / "repository", tmp_path / "home"
    home.mkdir()
    triton_models.write_odd_models(repository, "odd")
    server = TritonServer(
        home,
        {"odd": Path()},
        settings={
            "EVENMESH_TRITON_REPOSITORY": str(repository),
            "EVENMESH_TLS_CERT": str(files.chain),
            "EVENMESH_TLS_KEY": str(files.key),
            "EVENMESH_TLS_CA": str(files.authorities),
            "EVENMESH_TLS_CLIENTS": "required",
        },
        credentials=channel_credentials(Certificates(mine.chain, mine.key, mine.authorities).material),
    )
    with server:
        assert await _started(server.target, within_s=60, **mine.settings)
        for wrong in (
            {},
            {"triton_ssl": True, "triton_root_certificates": mine.authorities},
            mine.settings | {"triton_root_certificates": forged.authorities},
            mine.settings | {"triton_certificate_chain": forged.chain, "triton_private_key": forged.key},
        ):
            with pytest.raises(SettingsError, match="no Triton server"):
                await _started(server.target, **wrong)
        trusting = TritonClient(
            server.target, channel_credentials(Certificates(None, None, mine.authorities).material)
        )
        with pytest.raises(MeshError):
            await trusting.check_live(timeout_s=5)
        await trusting.close()


@pytest.mark.parametrize("missing", ["triton_root_certificates", "triton_certificate_chain"])
async def test_files_that_cannot_be_used_are_named_before_anything_is_asked(
    tmp_path: Path, authority: trustme.CA, missing: str
) -> None:
    files = Files.write(tmp_path / "certs", authority)
    wrong = files.settings | {missing: tmp_path / "none.pem"}
    with pytest.raises(SettingsError, match=f"{missing.upper()}.*none.pem"):
        await _started("127.0.0.1:9", **wrong)


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"TRITON_PRIVATE_KEY": "key.pem", "TRITON_SSL": "true"}, "a key needs its certificate"),
        ({"TRITON_CERTIFICATE_CHAIN": "cert.pem", "TRITON_SSL": "true"}, "a key needs its certificate"),
        ({"TRITON_ROOT_CERTIFICATES": "ca.pem"}, "TRITON_SSL=true would not be used"),
    ],
)
def test_settings_that_do_not_fit_each_other_are_refused(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], said: str
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(f"EVENMESH_GENERATOR_{name}", value)
    with pytest.raises(SettingsError, match=said):
        load(GeneratorSettings)


class Embedder(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]  # has no types
    """As much of a Triton server as an encoder asks of one."""

    def ModelMetadata(self, request: Any, context: Any) -> Any:
        return service_pb2.ModelMetadataResponse(name="embed", versions=["1"])

    def ModelConfig(self, request: Any, context: Any) -> Any:
        config = model_config_pb2.ModelConfig(name="embed", max_batch_size=8)
        config.input.add(name="text", data_type=model_config_pb2.TYPE_STRING)
        config.output.add(name="embedding", data_type=model_config_pb2.TYPE_FP32)
        return service_pb2.ModelConfigResponse(config=config)

    def ModelInfer(self, request: Any, context: Any) -> Any:
        rows = request.inputs[0].shape[0]
        reply = service_pb2.ModelInferResponse(model_name="embed")
        reply.outputs.add(name="embedding", datatype="FP32", shape=[rows, 2])
        reply.raw_output_contents.append(np.ones((rows, 2), np.float32).tobytes())
        return reply


def test_a_retrievers_encoder_and_its_server_show_each_other_who_they_are(
    tmp_path: Path, authority: trustme.CA
) -> None:
    files = Files.write(tmp_path / "triton-certs", authority)
    mine = Files.write(tmp_path / "retriever-certs", authority)
    forged = Files.write(tmp_path / "forged-certs", trustme.CA())
    server = grpc.server(ThreadPoolExecutor(1))
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(Embedder(), server)
    shown = [(files.key.read_bytes(), files.chain.read_bytes())]
    port = server.add_secure_port(
        "127.0.0.1:0", grpc.ssl_server_credentials(shown, files.authorities.read_bytes(), True)
    )
    server.start()

    def dimension(**fields: Any) -> int:
        return _load_encoder(RetrieverSettings(encoder=f"triton://127.0.0.1:{port}", **fields)).dimension

    try:
        assert dimension(**mine.settings) == 2
        for wrong in (
            {},
            {"triton_ssl": True, "triton_root_certificates": mine.authorities},
            mine.settings | {"triton_root_certificates": forged.authorities},
        ):
            with pytest.raises(CannotStart, match="no Triton server answers"):
                dimension(**wrong)
        with pytest.raises(SettingsError, match=r"EVENMESH_RETRIEVER_TRITON_ROOT_CERTIFICATES.*none\.pem"):
            dimension(**mine.settings | {"triton_root_certificates": tmp_path / "none.pem"})
    finally:
        server.stop(0)


def test_tls_for_an_encoder_that_no_triton_server_runs_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVENMESH_RETRIEVER_TRITON_SSL", "true")
    with pytest.raises(SettingsError, match=r"EVENMESH_RETRIEVER_ENCODER=.*EVENMESH_RETRIEVER_TRITON_SSL"):
        load(RetrieverSettings)
    monkeypatch.setenv("EVENMESH_RETRIEVER_ENCODER", "triton://127.0.0.1:8001")
    assert load(RetrieverSettings).triton_ssl


def test_a_server_that_others_reach_asks_for_certificates(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, authority: trustme.CA
) -> None:
    files = Files.write(tmp_path / "certs", authority)
    monkeypatch.setenv("EVENMESH_TRITON_HOST", "192.0.2.1")
    monkeypatch.setenv("EVENMESH_TLS_CERT", str(files.chain))
    monkeypatch.setenv("EVENMESH_TLS_KEY", str(files.key))
    monkeypatch.setenv("EVENMESH_TLS_CA", str(files.authorities))
    monkeypatch.setenv("EVENMESH_API_KEYS", str(tmp_path / "keys.toml"))  # which Triton cannot look at
    with pytest.raises(SettingsError, match="EVENMESH_TLS_CLIENTS=required"):
        load(TritonSettings)
    monkeypatch.setenv("EVENMESH_TLS_CLIENTS", "required")
    assert load(TritonSettings).tls_clients == "required"
    monkeypatch.setenv("EVENMESH_TRITON_HTTP_PORT", "8000")
    with pytest.raises(SettingsError, match="neither TLS"):
        load(TritonSettings)


def test_a_mesh_that_speaks_tls_speaks_it_with_triton_too(tmp_path: Path) -> None:
    settings = MeshSettings(home=tmp_path, port=0, services=services_with(GeneratorEngine.TRITON))
    ports = {service.name: 1 for service in settings.services}
    (generator,) = (one for one in settings.services if one.name == "generator")
    base = {"EVENMESH_TLS_CERT": "c.pem", "EVENMESH_TLS_KEY": "k.pem", "EVENMESH_TLS_CA": "system"}
    found = service_environment(generator, settings, ports, base=base, supervisor_pid=1)
    assert {name: value for name, value in found.items() if "TRITON" in name and "TARGET" not in name} == {
        "EVENMESH_GENERATOR_TRITON_SSL": "true",
        "EVENMESH_GENERATOR_TRITON_CERTIFICATE_CHAIN": "c.pem",
        "EVENMESH_GENERATOR_TRITON_PRIVATE_KEY": "k.pem",
    }
    plain = service_environment(generator, settings, ports, base={}, supervisor_pid=1)
    assert "EVENMESH_GENERATOR_TRITON_SSL" not in plain
