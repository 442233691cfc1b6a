"""The commands of docs/operate/deploy.md exist with the options that they are given, and what it lists is there."""

from __future__ import annotations

import re
import shlex
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml

from tests.support.manifests import INSTEAD, ORDER, SECRETS, SERVICES, build
from tests.support.pages import assert_evenmesh_has, assert_kubectl_has, blocks, commands

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "operate" / "deploy.md").read_text(encoding="utf-8")
WELL_FORMED = {"docker", "kind", "helm", "openssl", "base64", "cat", "cp", "python3", "/tmp/checkov/bin/pip"}  # noqa: S108
"""Programs that are not here: their lines are only read as a shell would."""
WELL_FORMED |= {"/tmp/checkov/bin/checkov"}  # noqa: S108

VERSION = version("evenmesh")

COMMANDS = [words for block in blocks(PAGE) for words in commands(block)]
KUBECTL = sorted({" ".join(words[1:]) for words in COMMANDS if words[0] == "kubectl"})
EVENMESH = sorted({shlex.join(words[1:]) for words in COMMANDS if words[0] == "evenmesh"})


def test_a_block_is_read_as_a_shell_reads_it() -> None:
    block = "for a in b c; do\n  docker build --tag $a \\\n    .\ndone\nexport X=$(cat y | base64)\nkubectl a > b &\n"
    assert commands(block) == [
        ["docker", "build", "--tag", "$a", "."],
        ["cat", "y"],
        ["base64"],
        ["kubectl", "a"],
    ]


def test_every_program_is_known() -> None:
    assert {words[0] for words in COMMANDS} <= WELL_FORMED | {"kubectl", "evenmesh"}
    assert len(KUBECTL) > 20
    assert len(EVENMESH) >= 5


@pytest.mark.parametrize("line", KUBECTL)
def test_kubectl_has_the_command_and_its_options(line: str) -> None:
    assert_kubectl_has(line.split())


@pytest.mark.parametrize("line", EVENMESH)
def test_evenmesh_can_read_the_command(line: str) -> None:
    assert_evenmesh_has(shlex.split(line))


def test_the_files_of_the_page_are_there() -> None:
    named = set(re.findall(r"\b(?:k8s|docs|src|tests)/[\w./-]*[\w/]", PAGE))
    for path in named:
        if "overlays/mine" in path:
            path = path.replace("mine", "prod")
        assert (ROOT / path).exists(), path
    for link in re.findall(r"\]\((?!http)([\w./-]+)", PAGE):
        assert (ROOT / "docs/operate" / link).exists(), link


def test_anchors_lead_somewhere() -> None:
    titles = {
        re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")
        for title in re.findall(r"^## (.*)$", PAGE, re.MULTILINE)
    }
    for anchor in re.findall(r"\]\(#([\w-]+)\)", re.sub(r"\n", " ", PAGE)):
        assert anchor in titles


def test_all_components_are_listed_in_their_order() -> None:
    listed = re.findall(r"^\| `([a-z][a-z0-9-]*)` \|", PAGE, re.MULTILINE)
    assert tuple(one for one in listed if one not in INSTEAD.values()) == ORDER
    for one, other in INSTEAD.items():  # one or the other, in one place
        assert listed[listed.index(one) + 1] == other


def test_images_are_those_of_the_overlays() -> None:
    loops = re.findall(r"^for service in (.*); do$", PAGE, re.MULTILINE)
    assert all(set(loop.split()) == set(SERVICES) for loop in loops)
    assert len(loops) == 2
    pulled = {
        container["image"]
        for workload in build("prod").workloads()
        for container in workload.every_container
        if "example" in container["image"]
    }
    assert pulled == {
        f"registry.example.com/evenmesh/{name}:{VERSION}" for name in (*SERVICES, "gateway", "triton")
    }
    assert set(re.findall(r"\$REGISTRY/[$\w]+:(\S+)", PAGE)) == {VERSION}
    loaded = {word for words in COMMANDS if words[:2] == ["kind", "load"] for word in words if ":" in word}
    local = {one.containers[0]["image"] for one in build("dev").workloads()}
    assert loaded == local


def test_secrets_are_made_with_what_the_pods_read() -> None:
    text = " ".join(" ".join(words) for words in COMMANDS)
    made = {
        name: set(re.findall(r"--from-(?:literal|file)=([\w.-]+)", rest))
        for name, rest in re.findall(r"create secret generic (\S+)((?: --from-\S+)+)", text)
    }
    assert made["evenmesh-keys"] == {"keys.toml"}
    for name, key in SECRETS:
        assert key in made[name]
    (mounted,) = (
        item["key"]
        for volume in build("prod").workload("postgres").pod["volumes"]
        if "secret" in volume
        for item in volume["secret"]["items"]
    )
    assert mounted in made["evenmesh-postgres"]
    (backend,) = (
        volume["secret"]
        for volume in build("prod").workload("otel-collector").pod["volumes"]
        if volume.get("secret", {}).get("secretName") == "otel-backend"
    )
    assert made[backend["secretName"]] == {"ca.crt", "tls.crt", "tls.key"}
    keys = build("prod").workload("retriever").environment()["EVENMESH_API_KEYS"]
    assert Path(keys).name in made["evenmesh-keys"]


def test_the_loader_holds_the_audits_volumes() -> None:
    pod = yaml.safe_load((ROOT / "k8s" / "tools" / "audit-loader.yaml").read_text(encoding="utf-8"))
    audit = build("everything").workload("audit")
    claims = [{v["persistentVolumeClaim"]["claimName"] for v in one["volumes"] if "persistentVolumeClaim" in v}
              for one in (pod["spec"], audit.pod)]  # fmt: skip
    assert claims[0] == claims[1]
    mounts = {mount["mountPath"] for mount in pod["spec"]["containers"][0]["volumeMounts"]}
    copied = {
        word.split(":")[1]
        for words in COMMANDS
        if "cp" in words
        for word in words
        if word.startswith("audit-loader:")
    }
    assert all(any(path.startswith(f"{mount}/") for mount in mounts) for path in copied)
    (script,) = audit.containers[0]["args"]
    assert {path for path in copied if path.startswith("/data/")} <= set(
        shlex.split(script.replace("\\\n", ""))
    )


def test_calls_that_leave_the_mesh_are_added_to_policies_that_are_there() -> None:
    (block,) = (one for one in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL) if "may-scrape" in one)
    policies = {one["metadata"]["name"]: one["spec"] for one in build("prod").of("NetworkPolicy")}
    for patch in yaml.safe_load(block)["patches"]:
        assert patch["target"]["kind"] == "NetworkPolicy"
        named = [name for name in policies if re.fullmatch(patch["target"]["name"], name)]
        assert named
        for operation in yaml.safe_load(patch["patch"]):
            assert (operation["op"], operation["path"]) == ("add", "/spec/egress/-")
            for name in named:
                assert policies[name]["egress"], name
