"""The probe asks what is there, in the way that it can be asked, and the real exporter finds out what is down."""

from __future__ import annotations

import re
import ssl
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from concurrent import futures
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import grpc
import pytest
import trustme
import yaml
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from tests.support.manifests import EVERYTHING, K8S, Manifests, addresses, build, with_components
from tests.support.programs import required
from tests.support.prometheus import reserved_ports
from tests.support.scripted_http import HttpReply, HttpRequest, in_thread

CONFIG: Final = K8S / "components" / "probe" / "config.yml"
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


def asked(built: Manifests) -> dict[str, tuple[str, str]]:
    """Module and target of each probe."""
    found: dict[str, tuple[str, str]] = {}
    for one in built.of("Probe"):
        (target,) = one["spec"]["targets"]["staticConfig"]["static"]
        found[one["metadata"]["name"]] = one["spec"]["module"], target
    return found


def test_without_tls_it_speaks_none_and_with_it_trusts_the_authority() -> None:
    assert asked(with_components("http", "monitoring", "probe")) == {
        "orchestrator": ("grpc", "orchestrator:7070"),
        "gateway": ("http", "http://gateway:7080/readyz"),
    }
    for name in ("prod", EVERYTHING):
        assert asked(build(name)) == {
            "orchestrator": ("grpc_tls", "orchestrator:7070"),
            "gateway": ("http_tls", "https://gateway:7080/readyz"),
        }


@pytest.mark.parametrize("name", ["prod", EVERYTHING])
def test_targets_show_a_certificate_of_their_name_and_ask_for_none(name: str) -> None:
    built = build(name)
    for _, target in asked(built).values():
        ((host, _),) = addresses(target)
        assert host in built.one("Certificate", host)["spec"]["dnsNames"]
    # The four inner services ask for a certificate.
    assert built.workload("orchestrator").environment()["EVENMESH_TLS_CLIENTS"] == "open"
    pod = built.workload("probe").pod
    (secret,) = (volume["secret"] for volume in pod["volumes"] if "secret" in volume)
    assert [item["key"] for item in secret["items"]] == ["ca.crt"], "no key of a certificate"
    mounts = {mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]}
    modules = yaml.safe_load(CONFIG.read_text(encoding="utf-8"))["modules"]
    for module, _ in asked(built).values():
        settings = modules[module][modules[module]["prober"]]
        assert str(Path(settings["tls_config"]["ca_file"]).parent) in mounts


@pytest.mark.parametrize("name", ["prod", EVERYTHING])
def test_prometheus_asks_the_exporter(name: str) -> None:
    built = build(name)
    service = built.one("Service", "probe")
    host, namespace = service["metadata"]["name"], service["metadata"]["namespace"]
    (port,) = service["spec"]["ports"]
    for one in built.of("Probe"):
        assert one["spec"]["prober"] == {"url": f"{host}.{namespace}.svc:{port['port']}", "path": "/probe"}
        assert one["spec"]["jobName"] == "probe"
        assert one["spec"]["module"] in yaml.safe_load(CONFIG.read_text(encoding="utf-8"))["modules"]


def test_prometheus_without_the_operator_asks_the_same() -> None:
    jobs = yaml.safe_load((K8S / "tools" / "scrape.yaml").read_text(encoding="utf-8"))["scrape_configs"]
    (job,) = (one for one in jobs if one["job_name"] == "probe")
    found = {(one["labels"]["__param_module"], *one["targets"]) for one in job["static_configs"]}
    assert found == set(asked(build("prod")).values())
    (exporter,) = (one["replacement"] for one in job["relabel_configs"] if "replacement" in one)
    assert {one["spec"]["prober"]["url"] for one in build("prod").of("Probe")} == {exporter}


async def ready(request: HttpRequest, reply: HttpReply) -> None:
    """Answer as a gateway: 200 at /readyz."""
    await reply.send(200 if request.path == "/readyz" else 503, "")


class Exporter:
    """A black-box exporter that runs, with the mesh's configuration and an authority.

    Attributes:
        health: what the gRPC server at ``grpc`` reports.
        grpc, http: ports of servers with TLS.
    """

    def __init__(self, folder: Path, port: int) -> None:
        authority = trustme.CA()
        certificate = authority.issue_cert("localhost")
        authority.cert_pem.write_to_path(folder / "ca.crt")
        text = CONFIG.read_text(encoding="utf-8").replace("/etc/probe/tls", str(folder))
        (folder / "config.yml").write_text(text)
        self.health = health.HealthServicer()
        self._server = grpc.server(futures.ThreadPoolExecutor(2))
        health_pb2_grpc.add_HealthServicer_to_server(self.health, self._server)
        chain = b"".join(blob.bytes() for blob in certificate.cert_chain_pems)
        pair = (certificate.private_key_pem.bytes(), chain)
        self.grpc = self._server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([pair]))
        self._server.start()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        certificate.configure_cert(context)
        self._web = ExitStack()
        self.http = self._web.enter_context(in_thread(ready, context)).port
        self._base = f"http://127.0.0.1:{port}"
        words = [f"--config.file={folder / 'config.yml'}", f"--web.listen-address=127.0.0.1:{port}"]
        self._process = subprocess.Popen(
            [required("prometheus-blackbox-exporter"), *words], stderr=subprocess.DEVNULL
        )

    def wait(self) -> None:
        """Wait until it answers."""
        deadline = time.monotonic() + 60
        while True:
            try:
                urllib.request.urlopen(f"{self._base}/-/healthy", timeout=30).close()  # noqa: S310
            except OSError:
                assert time.monotonic() < deadline
                time.sleep(0.05)
            else:
                return

    def probe(self, module: str, target: str) -> dict[str, float]:
        """What it shows of a probe, by metric; those with labels are left out."""
        query = urllib.parse.urlencode({"module": module, "target": target})
        with urllib.request.urlopen(f"{self._base}/probe?{query}", timeout=60) as page:  # noqa: S310
            text = page.read().decode()
        return {name: float(value) for name, value in re.findall(r"^(probe_\w+) (\S+)$", text, re.MULTILINE)}

    def close(self) -> None:
        """End all of it."""
        self._process.terminate()
        self._process.wait(30)
        self._server.stop(0).wait()
        self._web.close()


@pytest.fixture(scope="module")
def exporter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Exporter]:
    required("prometheus-blackbox-exporter")
    with reserved_ports(1) as (port,):
        found = Exporter(tmp_path_factory.mktemp("probe"), port)
        try:
            found.wait()
            yield found
        finally:
            found.close()


def test_the_exporter_sees_a_service_that_is_up_or_down(exporter: Exporter) -> None:
    target = f"localhost:{exporter.grpc}"
    exporter.health.set("", SERVING)
    seen = exporter.probe("grpc_tls", target)
    assert seen["probe_success"] == 1
    assert seen["probe_ssl_earliest_cert_expiry"] > time.time()
    exporter.health.set("", NOT_SERVING)
    assert exporter.probe("grpc_tls", target)["probe_success"] == 0
    exporter.health.set("", SERVING)
    assert exporter.probe("grpc", target)["probe_success"] == 0, "it speaks TLS"
    assert exporter.probe("grpc_tls", f"127.0.0.1:{exporter.grpc}")["probe_success"] == 0, "another name"


def test_the_exporter_sees_a_gateway_that_is_up_or_down(exporter: Exporter) -> None:
    base = f"https://localhost:{exporter.http}"
    seen = exporter.probe("http_tls", f"{base}/readyz")
    assert seen["probe_success"] == 1
    assert seen["probe_ssl_earliest_cert_expiry"] > time.time()
    assert exporter.probe("http_tls", f"{base}/draining")["probe_success"] == 0
    assert exporter.probe("https_public", f"{base}/readyz")["probe_success"] == 0, "an unknown authority"
    assert exporter.probe("http_tls", "https://localhost:1/readyz")["probe_success"] == 0


def test_the_exporter_takes_the_configuration() -> None:
    program = required("prometheus-blackbox-exporter")
    words = [program, "--config.check", f"--config.file={CONFIG}"]
    # It looks for the authority too, which only pods have.
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 or "/etc/probe/tls/ca.crt" in done.stderr, done.stderr
