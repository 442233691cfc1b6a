"""API keys: a file of hashes, checked whole, read again when it changes."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from evenmesh.wire.errors import Unauthenticated
from evenmesh_kit.security.caller import AgentName, Caller, Role
from evenmesh_kit.security.keys import PREFIX, ApiKeys, KeyEntry, KeysError, add_entry, new_key


class Clock:
    """A time that passes when reported."""

    def __init__(self) -> None:
        self.now = datetime(2026, 11, 22, 12, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now


def entry(key: str, *lines: str) -> str:
    """An entry of the file."""
    digest = hashlib.sha256(key.encode()).hexdigest()
    named = () if any(line.startswith("tenant") for line in lines) else ('tenant = "acme"',)
    return "\n".join(["[[key]]", f'sha256 = "{digest}"', *named, *lines, ""])


def test_a_key_says_who_for_whom_and_what(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(entry("emk_a", 'name = "ci"', 'tenant = "acme"', 'roles = ["ask", "ingest"]'))
    assert ApiKeys(path).caller("emk_a") == Caller("ci", "acme", frozenset({Role.ASK, Role.INGEST}))


def test_a_new_key_is_long_and_its_hash_opens(tmp_path: Path) -> None:
    (key, digest), (other, _) = new_key(), new_key()
    assert key != other
    assert key.startswith(PREFIX)
    assert len(key) >= 43
    path = tmp_path / "keys.toml"
    path.write_text(f'[[key]]\nname = "n"\ntenant = "acme"\nroles = ["ask"]\nsha256 = "{digest}"\n')
    keys = ApiKeys(path)
    assert keys.caller(key).name == "n"
    with pytest.raises(Unauthenticated, match="not known"):
        keys.caller(other)


def test_a_key_expires_when_it_says(tmp_path: Path) -> None:
    path, clock = tmp_path / "keys.toml", Clock()
    path.write_text(entry("k", 'name = "n"', 'roles = ["ask"]', "expires = 2026-11-22T12:00:10Z"))
    keys = ApiKeys(path, now=clock)
    assert keys.caller("k").name == "n"
    clock.now += timedelta(seconds=10)
    with pytest.raises(Unauthenticated, match="expired"):
        keys.caller("k")


def test_a_key_is_withdrawn_by_removing_it_and_a_broken_file_withdraws_none(tmp_path: Path) -> None:
    path, clock = tmp_path / "keys.toml", Clock()
    path.write_text(entry("k", 'name = "n"', 'roles = ["ask"]'))
    keys = ApiKeys(path, clock=lambda: clock.now.timestamp())
    for broken in ("[[key", entry("k", 'name = "n"', 'roles = ["king"]')):
        path.write_text(broken)
        clock.now += timedelta(seconds=2)
        assert keys.caller("k").name == "n"
    path.unlink()
    clock.now += timedelta(seconds=2)
    assert keys.caller("k").name == "n"
    path.write_text(entry("another", 'name = "n"', 'roles = ["ask"]'))
    clock.now += timedelta(seconds=2)
    with pytest.raises(Unauthenticated):
        keys.caller("k")
    assert keys.caller("another").name == "n"


def test_all_that_is_wrong_is_reported_at_once(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(
        "extra = 1\n"
        + entry("a", 'name = "n"', 'roles = ["king"]')
        + entry("b", 'name = "n"', "roles = []")
        + entry("c", 'roles = ["ask"]', 'tenant = "UPPER"', 'name = "n"')
        + entry("d", 'roles = ["ask"]', 'name = "n"', "expires = 2026-01-01T00:00:00")
        + '[[key]]\nname = "n"\ntenant = "acme"\nroles = ["ask"]\nsha256 = "short"\n'
        + entry("e", 'roles = ["ask"]', 'name = "n"')
        + entry("e", 'roles = ["ask"]', 'name = "m"')
    )
    with pytest.raises(KeysError) as wrong:
        ApiKeys(path)
    lines = str(wrong.value).splitlines()
    for number, word in enumerate(
        [
            "'extra'",
            "key 1: roles",
            "key 2: roles",
            "key 3: tenant",
            "key 4: expires",
            "key 5: sha256",
            "key 7",
        ]
    ):
        assert word in lines[number]
    assert len(lines) == 7


def test_a_key_without_a_tenant_is_refused_unless_configured(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    digest = hashlib.sha256(b"k").hexdigest()
    path.write_text(f'[[key]]\nname = "n"\nroles = ["ask"]\nsha256 = "{digest}"\n')
    with pytest.raises(KeysError, match=r"key 1: tenant: Field required"):
        ApiKeys(path)
    assert ApiKeys(path, default_tenant="acme").caller("k").tenant == "acme"
    # A service calls for the tenant that each of its calls names.
    path.write_text(f'[[key]]\nname = "n"\nroles = ["service"]\nsha256 = "{digest}"\n')
    assert ApiKeys(path).caller("k").roles == {Role.SERVICE}
    path.write_text("key = [1]")
    with pytest.raises(KeysError, match="key 1"):
        ApiKeys(path)


def test_a_file_that_is_not_there_is_reported(tmp_path: Path) -> None:
    with pytest.raises(KeysError, match="No such file"):
        ApiKeys(tmp_path / "none.toml")


@pytest.mark.parametrize("name", ["ci", 'Zoë "the" owner', "otter \U0001f9a6"])
def test_what_is_added_can_be_read_and_takes_nothing_away(tmp_path: Path, name: str) -> None:
    path = tmp_path / "keys.toml"
    path.write_text("# of the zoo\n", encoding="utf-8")
    key, digest = new_key()
    add_entry(path, KeyEntry.read({"name": name, "sha256": digest, "tenant": "acme", "roles": ["ask"]}))
    assert ApiKeys(path).caller(key).name == name
    assert path.read_text(encoding="utf-8").startswith("# of the zoo\n")


def test_a_provider_may_read_its_own_statements_alone(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(entry("k", 'name = "press"', 'roles = ["provider"]', 'provider = "Acme Press"'))
    assert ApiKeys(path).caller("k") == Caller("press", "acme", frozenset({Role.PROVIDER}), "Acme Press")
    _, digest = new_key()
    content = {"name": "n", "sha256": digest, "tenant": "acme", "roles": ["provider"], "provider": 'A "B"'}
    add_entry(path, KeyEntry.read(content))
    assert len(ApiKeys(path).file.content()) == 2


@pytest.mark.parametrize("lines", [['roles = ["provider"]'], ['roles = ["ask"]', 'provider = "P"']])
def test_the_role_provider_and_a_provider_go_together(tmp_path: Path, lines: list[str]) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(entry("k", 'name = "n"', *lines))
    with pytest.raises(KeysError, match="go together"):
        ApiKeys(path)


def test_a_key_may_be_bound_to_agents(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(entry("k", 'name = "ada"', 'roles = ["feedback"]', 'agents = ["qa/t5", "sum/org/t5"]'))
    bound = ApiKeys(path).caller("k").agents
    assert bound == frozenset({AgentName("qa", "t5"), AgentName("sum", "org/t5")})
    key, digest = new_key()
    content = {"name": "n", "sha256": digest, "tenant": "acme", "roles": ["ask"], "agents": ['q"a/m \u00e9']}
    add_entry(path, KeyEntry.read(content))
    assert ApiKeys(path).caller(key).agents == frozenset({AgentName('q"a', "m \u00e9")})


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        (['roles = ["ask"]', "agents = []"], "agents: must name an agent"),
        (['roles = ["ask"]', 'agents = ["qa"]'], "agents: must be TASK/MODEL"),
        (['roles = ["ask"]', 'agents = "qa/m"'], "agents"),
        (['roles = ["service"]', 'agents = ["qa/m"]'], "a service calls for any agent"),
    ],
)
def test_a_binding_that_makes_no_sense_is_refused(tmp_path: Path, lines: list[str], problem: str) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(entry("k", 'name = "n"', *lines))
    with pytest.raises(KeysError, match=problem):
        ApiKeys(path)
