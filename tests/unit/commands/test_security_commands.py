"""``evenmesh certs`` and ``evenmesh keys``, as a user runs them."""

import os
import stat
from pathlib import Path

import pytest

from evenmesh.commands import main
from evenmesh.wire.certificates import Certificates
from evenmesh_kit.security.caller import Role
from evenmesh_kit.security.keys import ApiKeys


def test_certificates_of_one_authority_that_services_can_use(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "certs"
    before = os.umask(0o022)
    try:
        assert main(["certs", "dev", "--output", str(folder), "--name", "mesh.example"]) == 0
        assert os.umask(0o022) == 0o022  # as it was
    finally:
        os.umask(before)
    assert {stat.S_IMODE(one.stat().st_mode) for one in folder.iterdir()} == {0o600}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    for owner in ("orchestrator", "retriever", "reranker", "generator", "evaluator", "client"):
        key = folder / f"{owner}-key.pem"
        assert Certificates(folder / f"{owner}.pem", key, folder / "ca.pem").material.chain
        assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert "ca.pem" in capsys.readouterr().out
    assert main(["certs", "dev", "--output", str(folder)]) == 2
    assert "not empty" in capsys.readouterr().err


def test_a_key_is_printed_once_and_its_entry_opens(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "keys.toml"
    for name, role in (("ci", "ingest"), ('a "quoted" one', "ask")):
        assert main(["keys", "new", name, "--role", role, "--tenant", "acme", "--file", str(file)]) == 0
        key = capsys.readouterr().out.strip()
        found = ApiKeys(file).caller(key)
        assert (found.name, found.tenant, found.roles) == (name, "acme", {Role(role)})
        assert key not in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert main(["keys", "check", str(file)]) == 0
    assert "acme" in capsys.readouterr().out


def test_a_key_is_bound_to_agents(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "keys.toml"
    options = ["--role", "feedback", "--tenant", "acme", "--agent", "qa/t5", "--agent", "qa/org/t5"]
    assert main(["keys", "new", "ada", *options, "--file", str(file)]) == 0
    found = ApiKeys(file).caller(capsys.readouterr().out.strip())
    assert sorted(found.agents or ()) == [("qa", "org/t5"), ("qa", "t5")]
    assert main(["keys", "check", str(file)]) == 0
    assert "qa/org/t5" in capsys.readouterr().out


def test_a_key_of_services_belongs_to_no_tenant(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "keys.toml"
    assert main(["keys", "new", "mesh", "--role", "service", "--file", str(file)]) == 0
    assert ApiKeys(file).caller(capsys.readouterr().out.strip()).roles == {Role.SERVICE}
    assert "tenant" not in file.read_text()
    assert main(["keys", "check", str(file)]) == 0
    assert "any" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--role", "ask"], "--tenant: give the tenant"),
        (["--role", "ask", "--role", "service"], "--tenant: give the tenant"),
        (["--role", "service", "--tenant", "acme"], "--tenant: give none"),
        (["--role", "king", "--tenant", "acme"], "roles.0"),
        (["--role", "ask", "--tenant", "UP"], "tenant"),
        (["--role", "ask", "--tenant", "acme", "--agent", "qa"], "must be TASK/MODEL"),
        (["--role", "service", "--agent", "qa/m"], "a service calls for any agent"),
        (["--role", "ask", "--tenant", "acme", "--expires", "soon"], "expires"),
        (["--role", "ask", "--tenant", "acme", "--expires", "2027-01-01T00:00:00"], "time zone"),
    ],
)
def test_a_key_that_makes_no_sense_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], complaint: str
) -> None:
    file = tmp_path / "keys.toml"
    assert main(["keys", "new", "n", *options, "--file", str(file)]) == 2
    reported = capsys.readouterr()
    assert complaint in reported.err
    assert reported.out == ""
    assert not file.exists()


def test_a_broken_file_of_keys_is_not_added_to(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "keys.toml"
    file.write_text("[[key]]\n")
    assert main(["keys", "new", "n", "--role", "ask", "--tenant", "acme", "--file", str(file)]) == 2
    assert "key 1" in capsys.readouterr().err
    assert file.read_text() == "[[key]]\n"


def test_who_may_read_a_file_of_keys_stays_as_it_was(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, link = tmp_path / "keys.toml", tmp_path / "link.toml"
    file.touch()
    file.chmod(0o640)  # the service reads it by its group
    link.symlink_to(file)
    for number, named in enumerate((file, link), 1):
        assert main(["keys", "new", "n", "--role", "ask", "--tenant", "acme", "--file", str(named)]) == 0
        assert ApiKeys(file).caller(capsys.readouterr().out.strip()).name == "n"
        assert file.read_text().count("[[key]]") == number
        assert stat.S_IMODE(file.stat().st_mode) == 0o640
    assert link.is_symlink()
    assert sorted(one.name for one in tmp_path.iterdir()) == ["keys.toml", "link.toml"]


@pytest.mark.parametrize(
    ("content", "name"),
    [
        (f"key = [{{name='n', sha256='{'0' * 64}', tenant='acme', roles=['ask']}}]\n", "another"),
        ("", "delete\x7f"),
    ],
)
def test_an_entry_that_would_break_the_file_is_not_added(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str, name: str
) -> None:
    file = tmp_path / "keys.toml"
    file.write_text(content)
    assert main(["keys", "check", str(file)]) == 0
    capsys.readouterr()
    assert main(["keys", "new", name, "--role", "ask", "--tenant", "acme", "--file", str(file)]) == 2
    reported = capsys.readouterr()
    assert f"cannot add to {file}: not TOML" in reported.err
    assert reported.out == ""
    assert [one.name for one in tmp_path.iterdir()] == ["keys.toml"]
    assert file.read_text() == content
