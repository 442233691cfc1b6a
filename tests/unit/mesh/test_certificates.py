from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trustme

from evenmesh.commands import main
from evenmesh_mesh import Mesh, MeshSettings, MeshStartError, certificates
from evenmesh_mesh.doctor import Level, examine
from tests.unit.mesh.conftest import MakeSettings

NOW = datetime(2026, 12, 2, 12, tzinfo=UTC)
DAY = timedelta(days=1)
AUTHORITY = trustme.CA()


def written(folder: Path, begins: datetime, ends: datetime) -> dict[str, str]:
    """Variables of a certificate that is valid in between."""
    certificate = AUTHORITY.issue_cert("127.0.0.1", not_before=begins, not_after=ends)
    chain, key = folder / "chain.pem", folder / "key.pem"
    chain.write_bytes(b"".join(part.bytes() for part in certificate.cert_chain_pems))
    key.write_bytes(certificate.private_key_pem.bytes())
    (folder / "ca.pem").write_bytes(AUTHORITY.cert_pem.bytes())
    return {
        "EVENMESH_TLS_CERT": str(chain),
        "EVENMESH_TLS_KEY": str(key),
        "EVENMESH_TLS_CA": str(folder / "ca.pem"),
    }


def set_all(monkeypatch: pytest.MonkeyPatch, variables: Mapping[str, str]) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


def access(tmp_path: Path) -> tuple[Level, str]:
    findings = {finding.what: finding for finding in examine(MeshSettings(home=tmp_path / "home", port=0))}
    return findings["access"].level, findings["access"].detail


def test_a_certificate_is_valid_from_its_first_moment_until_its_last(tmp_path: Path) -> None:
    given = written(tmp_path, NOW, NOW + 100 * DAY)
    name = f"EVENMESH_TLS_CERT={tmp_path / 'chain.pem'}"
    second = timedelta(seconds=1)

    assert certificates.invalid(given, NOW - second) == [
        f"{name} is not valid before 2026-12-02T12:00:00Z: compare the clock of this machine"
    ]
    assert certificates.invalid(given, NOW) == []
    assert certificates.ending(given, NOW + 86 * DAY - second) == []
    assert certificates.ending(given, NOW + 86 * DAY) == [
        f"{name} ends at 2027-03-12T12:00:00Z: renew it before"
    ]
    assert certificates.invalid(given, NOW + 100 * DAY) == [
        f"{name} expired at 2027-03-12T12:00:00Z: renew it"
    ]
    assert certificates.ending(given, NOW + 100 * DAY) == []


def test_one_valid_authority_of_a_file_is_enough(tmp_path: Path) -> None:
    old = AUTHORITY.issue_cert("old", not_before=NOW - 2 * DAY, not_after=NOW - DAY)
    early = AUTHORITY.issue_cert("early", not_before=NOW + DAY, not_after=NOW + 900 * DAY)
    valid = AUTHORITY.issue_cert("valid", not_before=NOW - DAY, not_after=NOW + 90 * DAY)
    file = tmp_path / "ca.pem"
    file.write_bytes(b"".join(one.cert_chain_pems[0].bytes() for one in (old, valid, early)))
    given = {"EVENMESH_TLS_CA": str(file)}

    assert certificates.invalid(given, NOW) == []
    assert certificates.invalid(given, NOW + 90 * DAY) == []  # the early one is valid by then
    file.write_bytes(old.cert_chain_pems[0].bytes())
    assert certificates.invalid(given, NOW) == [
        f"EVENMESH_TLS_CA={file} expired at 2026-12-01T12:00:00Z: renew it"
    ]


@pytest.mark.parametrize("content", [None, b"", b"no certificate"])
def test_files_without_a_certificate_are_left_to_who_loads_them(
    tmp_path: Path, content: bytes | None
) -> None:
    file = tmp_path / "chain.pem"
    if content is not None:
        file.write_bytes(content)

    assert certificates.invalid({"EVENMESH_TLS_CERT": str(file), "EVENMESH_TLS_CA": "system"}) == []


def test_the_doctor_warns_before_the_end_and_fails_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = datetime.now(UTC)
    set_all(monkeypatch, written(tmp_path, now - DAY, now + 100 * DAY))
    assert access(tmp_path)[0] is Level.OK

    written(tmp_path, now - DAY, now + 3 * DAY)
    level, detail = access(tmp_path)
    assert (level, "ends at" in detail) == (Level.WARN, True)

    written(tmp_path, now - 2 * DAY, now - DAY)
    level, detail = access(tmp_path)
    assert (level, "expired at" in detail) == (Level.FAIL, True)


async def test_a_mesh_does_not_start_with_a_certificate_that_has_expired(
    tmp_path: Path, stand_in_settings: MakeSettings
) -> None:
    settings = stand_in_settings()
    now = datetime.now(UTC)
    environment = {**settings.environment, **written(tmp_path, now - 2 * DAY, now - DAY)}

    with pytest.raises(MeshStartError, match=r"^EVENMESH_TLS_CERT=.*chain\.pem expired at "):
        async with Mesh(stand_in_settings(environment=environment)):
            pytest.fail("started, although nobody can reach its services")
    assert not settings.home.exists()


def test_the_status_warns_before_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = datetime.now(UTC)
    set_all(monkeypatch, written(tmp_path, now - DAY, now + 3 * DAY))

    assert main(["status", "--home", str(tmp_path / "home")]) == 1

    assert "renew it before" in capsys.readouterr().err.replace("\n", " ")
