"""Files of limits."""

from __future__ import annotations

import logging
import os
from functools import partial
from pathlib import Path

import pytest

from evenmesh.wire.file_watch import WatchedFiles
from evenmesh_kit.admission.limits import Limits, LimitsError, TenantLimits
from tests.support.clock import Clock


def written(folder: Path, text: str) -> Path:
    """A file with that in it, of another time than the one before."""
    path = folder / "limits.toml"
    before = path.stat().st_mtime_ns if path.exists() else 0
    path.write_text(text)
    os.utime(path, ns=(before + 10**9, before + 10**9))
    return path


def test_what_a_tenant_does_not_say_is_as_in_default(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        "[default]\ncalls_per_s = 4\ntokens_per_minute = 600\n[tenants.acme]\nweight = 2\ncalls_per_s = 0.25\n",
    )
    limits = Limits.read(path)
    assert limits.of("other") == TenantLimits(calls_per_s=4, tokens_per_minute=600)
    assert limits.of("acme") == TenantLimits(calls_per_s=0.25, tokens_per_minute=600, weight=2)
    assert (limits.of("other").calls_at_once, limits.of("acme").calls_at_once) == (2 * 4, 1)
    assert limits.of("acme").tokens_per_s == 600 / 60


def test_an_empty_file_limits_nothing(tmp_path: Path) -> None:
    assert Limits.read(written(tmp_path, "")).of("anyone") == TenantLimits()


def test_every_problem_is_reported_at_once(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        "[defaults]\n[default]\nburst = 0\n[tenants.acme]\nconcurent = 1\n[tenants.'No Such']\nweight = -1\n",
    )
    with pytest.raises(LimitsError) as wrong:
        Limits.read(path)
    lines = str(wrong.value).splitlines()
    assert all(line.startswith(f"{path}: ") for line in lines)
    assert [line.removeprefix(f"{path}: ").split(":")[0] for line in lines] == [
        "defaults",
        "default.burst",
        "tenants.acme.burst",  # of the default
        "tenants.acme.concurent",
        "tenants.No Such",
        "tenants.No Such.burst",
        "tenants.No Such.weight",
    ]


@pytest.mark.parametrize("text", ["[default", "default = 1", "tenants = []"])
def test_what_is_no_file_of_limits(tmp_path: Path, text: str) -> None:
    with pytest.raises(LimitsError, match=r"limits\.toml"):
        Limits.read(written(tmp_path, text))
    with pytest.raises(LimitsError, match="No such file"):
        Limits.read(tmp_path / "none.toml")


def test_a_changed_file_is_read_again_and_a_broken_one_is_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    path = written(tmp_path, "[default]\ncalls_per_s = 1\n")
    file = WatchedFiles((path,), partial(Limits.read, path), LimitsError, clock=clock)
    before = file.content()
    written(tmp_path, "[default]\ncalls_per_s = 2\n")
    assert file.content() is before  # looked at within the second
    clock.now += 1
    assert file.content().default.calls_per_s == 2
    written(tmp_path, "[default]\ncalls_per_s = 'many'\n")
    clock.now += 1
    with caplog.at_level(logging.WARNING):
        assert file.content().default.calls_per_s == 2
    assert "cannot be used; earlier content stays in use" in caplog.text
