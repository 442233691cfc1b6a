from pathlib import Path

import pytest

from evenmesh_generator.triton import environment
from evenmesh_generator.triton.environment import RuntimeUnavailableError, TritonRuntime


@pytest.fixture
def able(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A machine on which Triton runs, whatever this one is."""
    monkeypatch.setattr(environment.sys, "platform", "linux")
    monkeypatch.setattr(environment.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(environment.platform, "libc_ver", lambda: ("glibc", "2.35"))
    monkeypatch.setattr(environment.sys, "version_info", (3, 11, 7, "final", 0))
    return monkeypatch


def test_an_able_machine_is_not_refused(able: pytest.MonkeyPatch) -> None:
    assert environment.refusal() is None


def test_other_systems_are_refused(able: pytest.MonkeyPatch) -> None:
    able.setattr(environment.sys, "platform", "darwin")
    able.setattr(environment.platform, "system", lambda: "Darwin")
    assert environment.refusal() == "Triton's server is for Linux on x86-64; this is Darwin on x86_64"


def test_other_processors_are_refused(able: pytest.MonkeyPatch) -> None:
    able.setattr(environment.platform, "machine", lambda: "aarch64")
    assert "aarch64" in str(environment.refusal())


@pytest.mark.parametrize(("library", "version"), [("glibc", "2.31"), ("", ""), ("musl", "2.99")])
def test_an_older_or_another_libc_is_refused(able: pytest.MonkeyPatch, library: str, version: str) -> None:
    able.setattr(environment.platform, "libc_ver", lambda: (library, version))
    assert "needs glibc 2.35 or newer" in str(environment.refusal())


@pytest.mark.parametrize("version", [(3, 10), (3, 13)])
def test_a_python_without_a_stub_or_numpy_1_is_refused(
    able: pytest.MonkeyPatch, version: tuple[int, int]
) -> None:
    able.setattr(environment.sys, "version_info", (*version, 0, "final", 0))
    assert f"{version[0]}.{version[1]}" in str(environment.refusal())


def test_nothing_is_made_where_it_cannot_run(able: pytest.MonkeyPatch, tmp_path: Path) -> None:
    able.setattr(environment.platform, "machine", lambda: "aarch64")
    with pytest.raises(RuntimeUnavailableError, match="aarch64"):
        environment.prepare(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_what_pip_says_is_reported_and_nothing_half_made_stays(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if environment.refusal() is not None:
        pytest.skip(str(environment.refusal()))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(
        RuntimeUnavailableError, match=r"pip cannot install nvidia-pytriton.*No matching"
    ) as caught:
        environment.prepare(tmp_path)
    assert "\n" not in str(caught.value)
    assert not environment.is_prepared(tmp_path)
    assert [path for path in tmp_path.iterdir() if path.is_dir()] == []


def test_a_folder_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    if environment.refusal() is not None:
        pytest.skip(str(environment.refusal()))
    (tmp_path / "file").touch()
    with pytest.raises(RuntimeUnavailableError, match="EVENMESH_TRITON_HOME"):
        environment.prepare(tmp_path / "file")


def test_a_runtime_that_lost_a_part_is_reported(tmp_path: Path) -> None:
    if environment.refusal() is not None:
        pytest.skip(str(environment.refusal()))
    folder = environment.folder_of_runtime(tmp_path)
    folder.mkdir()
    (folder / "runtime.json").write_text("{}")
    assert environment.is_prepared(tmp_path)
    with pytest.raises(RuntimeUnavailableError, match=f"remove {folder}"):
        environment.prepare(tmp_path)


def test_runtimes_are_where_the_user_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("EVENMESH_TRITON_HOME", str(tmp_path))
    assert environment.home() == tmp_path
    monkeypatch.delenv("EVENMESH_TRITON_HOME")
    assert environment.home().parts[-2:] == ("evenmesh", "triton")


def test_an_installed_server_is_taken_with_the_backends_beside_it(tmp_path: Path) -> None:
    server = tmp_path / "bin" / "tritonserver"
    server.parent.mkdir()
    with pytest.raises(RuntimeUnavailableError, match="is not a program"):
        TritonRuntime.installed(server)
    server.write_text("#!/bin/sh\n")
    server.chmod(0o755)
    with pytest.raises(RuntimeUnavailableError, match="no Python backend"):
        TritonRuntime.installed(server)
    (tmp_path / "backends" / "python").mkdir(parents=True)
    found = TritonRuntime.installed(server)
    assert (found.server, found.backends, found.packages) == (server, tmp_path / "backends", "")
