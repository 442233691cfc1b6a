import importlib
import json
import os
import re
import socket
import sys
from pathlib import Path

import pytest
import torch

from evenmesh.commands import main
from evenmesh.local_mesh import MeshState, ServiceState
from evenmesh_kit.compute import cpu_engine, devices
from evenmesh_kit.settings import unread_variables
from evenmesh_lab import machine
from evenmesh_mesh import MeshSettings, doctor
from evenmesh_mesh.doctor import Level, examine
from evenmesh_mesh.lock import MeshLock
from tests.support.images import ROOT


def found(settings: MeshSettings) -> dict[str, doctor.Finding]:
    return {finding.what: finding for finding in examine(settings)}


def test_looks_at_everything_and_changes_nothing(tmp_path: Path) -> None:
    findings = found(MeshSettings(home=tmp_path / "home", port=0))

    assert set(findings) == {
        "python", "packages", "processor", "threads", "cpu engine", "memory", "home",
        "encoder", "generator", "gpu", "triton", "ports", "access", "variables",
    }  # fmt: skip
    assert sys.executable in findings["python"].detail
    assert findings["encoder"].level is Level.OK
    assert all(finding.advice for finding in findings.values() if finding.level is not Level.OK)
    assert list(tmp_path.iterdir()) == []


def test_taken_ports_are_named(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        finding = found(MeshSettings(home=tmp_path, port=port - 1))["ports"]

    assert finding.level is Level.FAIL
    assert f"{port} (retriever)" in finding.detail


def test_the_gateways_port_is_looked_at_as_up_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        command = ["doctor", "--json", "--home", str(tmp_path), "--port", str(port - 10)]
        main(command)
        (looked_at,) = (
            one for one in json.loads(capsys.readouterr().out)["findings"] if one["what"] == "ports"
        )
        main([*command, "--no-gateway"])
        without = capsys.readouterr().out
    assert f"{port} (gateway)" in looked_at["detail"]
    assert "(gateway)" not in without


def test_variables_without_an_effect_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = MeshSettings(home=tmp_path, port=22_000)
    for name in [name for name in os.environ if name.startswith("EVENMESH_")]:
        monkeypatch.delenv(name)
    assert found(settings)["variables"].level is Level.OK
    monkeypatch.setenv("EVENMESH_RETRIEVER_MAXWORK", "7")
    monkeypatch.setenv("EVENMESH_LIMIT", "/nowhere")
    monkeypatch.setenv("EVENMESH_API_KEY", "k")
    monkeypatch.setenv("EVENMESH_SHARED_DATA", "/data")
    misspelt = found(settings)["variables"]
    assert misspelt.level is Level.WARN
    assert "EVENMESH_LIMIT (is it EVENMESH_LIMITS?)" in misspelt.detail
    assert "EVENMESH_RETRIEVER_MAXWORK (is it EVENMESH_RETRIEVER_MAX_WORK?)" in misspelt.detail
    assert "API_KEY" not in misspelt.detail
    assert "SHARED_DATA" not in misspelt.detail
    monkeypatch.setenv("EVENMESH_ORCHESTRATOR_HOST", "0.0.0.0")  # noqa: S104 - what has no effect
    monkeypatch.setenv("EVENMESH_RERANKER_GENERATOR_TARGET", "elsewhere:1")
    monkeypatch.setenv("EVENMESH_ORCHESTRATOR_PORT", "22000")
    overridden = found(settings)["variables"]
    assert "EVENMESH_ORCHESTRATOR_HOST, EVENMESH_RERANKER_GENERATOR_TARGET" in overridden.detail
    assert "PORT" not in overridden.detail


@pytest.mark.parametrize(("module", "name"), doctor._SETTINGS.values(), ids=doctor._SETTINGS)
def test_no_service_takes_a_variable_of_another_for_misspelt(
    module: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = getattr(importlib.import_module(module), name)()
    for variable in (
        *doctor._names_of_settings(),
        "EVENMESH_API_KEY",
        "EVENMESH_TOKEN_FILE",
        "EVENMESH_HOME",
    ):
        monkeypatch.setenv(variable, "x")  # after the settings were read
    assert unread_variables(settings) == []


def test_the_ports_of_a_running_mesh_are_no_clash(tmp_path: Path) -> None:
    with MeshLock(tmp_path) as lock:
        lock.write(MeshState(1, ready=True, services={"orchestrator": ServiceState("127.0.0.1:7", 2, 0)}))
        finding = found(MeshSettings(home=tmp_path))["ports"]

    assert finding == doctor.Finding(
        "ports", Level.OK, "a mesh is running already, orchestrator at 127.0.0.1:7"
    )


def test_a_home_in_a_file_and_a_missing_package_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setitem(doctor._PACKAGES, "no_such_package_of_ours", "no-such")

    findings = found(MeshSettings(home=tmp_path / "file" / "home", port=0))

    assert (findings["home"].level, findings["packages"].level) == (Level.FAIL, Level.FAIL)
    assert "EVENMESH_HOME" in findings["home"].advice
    assert findings["packages"].detail == "missing: no-such"


def test_a_gpu_that_cannot_be_used_is_a_warning_that_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(devices, "DRIVER", tmp_path / "none")
    assert doctor._gpu().level is Level.OK
    monkeypatch.setattr(devices, "DRIVER", tmp_path)
    finding = doctor._gpu()
    assert finding.level is Level.WARN
    assert "built without CUDA" in finding.advice


def test_a_gpu_is_named_and_what_belongs_on_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: f"GPU {index}")
    finding = doctor._gpu()
    assert finding.level is Level.OK
    assert "GPU 0, GPU 1" in finding.detail
    assert "vLLM" in finding.detail
    (record,) = re.findall(r"docs/decisions/\S+\.md", finding.detail)
    assert (ROOT / record).is_file()


def test_whether_triton_can_run_is_said_and_why_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from evenmesh_generator.triton import environment

    monkeypatch.setattr(environment, "refusal", lambda: "the moon is not full")
    assert "it cannot run here: the moon is not full" in found(MeshSettings(home=tmp_path))["triton"].detail

    monkeypatch.setattr(environment, "refusal", lambda: None)
    monkeypatch.setenv("EVENMESH_TRITON_HOME", str(tmp_path))
    assert "first start fetches" in found(MeshSettings(home=tmp_path))["triton"].detail

    there = environment.folder_of_runtime(tmp_path)
    there.mkdir()
    (there / "runtime.json").touch()
    finding = found(MeshSettings(home=tmp_path))["triton"]
    assert finding.level is Level.OK
    assert str(there) in finding.detail


@pytest.mark.parametrize(
    ("installed", "engine", "level", "said"),
    [
        ("2026.4.1", "auto", Level.OK, "retriever's encoder: OpenVINO 2026.4.1"),
        ("2026.4.1", "torch", Level.OK, "reranker's encoder: PyTorch"),
        (None, "auto", Level.OK, "pip install openvino"),
        (None, "torch", Level.OK, "reranker's encoder: PyTorch"),
        (None, "openvino", Level.FAIL, "not installed"),
    ],
)
def test_what_computes_encoders_is_said(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    installed: str | None,
    engine: str,
    level: Level,
    said: str,
) -> None:
    monkeypatch.setattr(cpu_engine, "installed_version", lambda: installed)
    monkeypatch.delenv("EVENMESH_RETRIEVER_CPU_ENGINE", raising=False)
    monkeypatch.setenv("EVENMESH_RERANKER_CPU_ENGINE", engine)
    finding = found(MeshSettings(home=tmp_path, port=0))["cpu engine"]
    assert finding.level is level
    assert said in finding.detail


def test_little_memory_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    levels = []
    for free in (1_000_000_000, 2_000_000_000, 9_000_000_000):
        monkeypatch.setattr(doctor, "usable_memory", lambda _, free=free: free)
        levels.append(found(MeshSettings(home=tmp_path, port=0))["memory"].level)

    assert levels == [Level.FAIL, Level.WARN, Level.OK]


def test_a_container_s_limits_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_CGROUP", tmp_path)
    whole = machine.usable_cores()
    assert machine.usable_memory(100) == 100

    (tmp_path / "cpu.max").write_text("50000 100000\n")
    (tmp_path / "memory.max").write_text("90\n")
    (tmp_path / "memory.current").write_text("60\n")
    assert machine.usable_cores() == 1
    assert machine.usable_memory(100) == 30

    (tmp_path / "cpu.max").write_text("max 100000\n")
    (tmp_path / "memory.max").write_text("max\n")
    assert machine.usable_cores() == whole
    assert machine.usable_memory(100) == 100


@pytest.mark.parametrize(
    ("cpuinfo", "said"),
    [
        ("flags\t\t: fpu avx2 avx512f amx_bf16\n", ("AVX2", "AVX-512", "AMX bf16")),
        ("Features\t: fp asimd bf16 sve\n", ("NEON", "bf16", "SVE")),
        ("nothing\n", ()),
    ],
)
def test_matrix_instructions_by_their_flags(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cpuinfo: str, said: tuple[str, ...]
) -> None:
    (tmp_path / "cpuinfo").write_text(cpuinfo)
    monkeypatch.setattr(machine, "_CPUINFO", tmp_path / "cpuinfo")

    assert machine.matrix_instructions() == said


def test_it_says_who_gets_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = MeshSettings(home=tmp_path, port=0)
    assert found(settings)["access"] == doctor.Finding(
        "access", Level.OK, "127.0.0.1 alone: plain text; no authentication"
    )
    keys = tmp_path / "keys.toml"
    monkeypatch.setenv("EVENMESH_API_KEYS", str(keys))
    missing = found(settings)["access"]
    assert (missing.level, "EVENMESH_API_KEYS" in missing.detail) == (Level.FAIL, True)
    keys.write_text(f'[[key]]\nname = "mesh"\nsha256 = "{64 * "0"}"\nroles = ["service"]\n')
    alone = found(settings)["access"]
    assert (alone.level, "nothing to show each other" in alone.detail) == (Level.WARN, True)
    monkeypatch.setenv("EVENMESH_API_KEY", "emk_one")
    assert found(settings)["access"].detail == "127.0.0.1 alone: plain text; authentication by API keys"
    monkeypatch.setenv("EVENMESH_ALLOW_INSECURE", "true")
    assert found(settings)["access"].level is Level.WARN
