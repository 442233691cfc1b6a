"""The commands of the pages on deploying exist with the options that they are given, and what they list is there."""

from __future__ import annotations

import re
import shlex
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.manifests import INSTEAD, K8S, ORDER, SECRETS, SERVICES, Manifests, build, overlay
from tests.support.pages import assert_evenmesh_has, assert_kubectl_has, blocks, commands, inline, section

ROOT = Path(__file__).parents[3]
DEPLOY, COMPONENTS, CONTAINERS, UPGRADE = (
    (ROOT / "docs" / "operate" / f"{name}.md").read_text(encoding="utf-8")
    for name in ("deploy", "components", "containers", "upgrade")
)
PAGES = (DEPLOY, COMPONENTS, CONTAINERS, UPGRADE)
WELL_FORMED = {"docker", "kind", "helm", "openssl", "base64", "cat", "cp", "make", "python3"}
"""Programs that are not here: their lines are only read as a shell would."""
WELL_FORMED |= {"/tmp/checkov/bin/pip", "/tmp/checkov/bin/checkov"}  # noqa: S108

VERSION = version("evenmesh")

COMMANDS = [words for page in PAGES for block in blocks(page) for words in commands(block)]
TYPED = [*COMMANDS, *(words for page in PAGES for words in inline(page, "kubectl"))]
KUBECTL = sorted({shlex.join(words[1:]) for words in TYPED if words[0] == "kubectl"})
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
    assert_kubectl_has(shlex.split(line))


@pytest.mark.parametrize("line", EVENMESH)
def test_evenmesh_can_read_the_command(line: str) -> None:
    assert_evenmesh_has(shlex.split(line))


@pytest.mark.parametrize("page", PAGES)
def test_the_files_of_a_page_are_there(page: str) -> None:
    named = set(re.findall(r"\b(?:k8s|docs|src|tests)/[\w./-]*[\w/]", page))
    for path in named:
        if "overlays/mine" in path:
            path = path.replace("mine", "prod")
        assert (ROOT / path).exists(), path
    for link in re.findall(r"\]\((?!http)([\w./-]+)", page):
        assert (ROOT / "docs/operate" / link).exists(), link


def test_all_components_are_listed_in_their_order() -> None:
    listed = re.findall(r"^\| \[`([a-z][a-z0-9-]*)`\]\(#", COMPONENTS, re.MULTILINE)
    assert tuple(one for one in listed if one not in INSTEAD.values()) == ORDER
    for one, other in INSTEAD.items():  # one or the other, in one place
        assert listed[listed.index(one) + 1] == other


def test_each_component_has_a_section() -> None:
    rows = re.findall(r"^\| \[`([a-z0-9-]+)`\]\(#([a-z0-9-]+)\)", COMPONENTS, re.MULTILINE)
    for name, anchor in rows:
        assert anchor == name or f"| `{name}` |" in section(COMPONENTS, anchor)
        assert section(COMPONENTS, anchor).strip()


def test_secrets_are_those_that_components_read() -> None:
    table = COMPONENTS.split("| Secret | keys |")[1].split("\n\n")[0]
    listed = {
        name: set(re.findall(r"`([\w.-]+)`", keys))
        for name, keys in re.findall(r"^\| `([\w-]+)` \| (.*?) \|", table, re.MULTILINE)
    }
    for name, key in SECRETS:
        assert key in listed[name]
    made = {one["spec"]["secretName"] for one in build("everything").of("Certificate")}
    for workload in build("everything").workloads():
        for volume in workload.pod.get("volumes", ()):
            if "secret" in volume and volume["secret"]["secretName"] not in made:
                items = volume["secret"].get("items", ())
                assert {one["key"] for one in items} <= listed[volume["secret"]["secretName"]]


def _first_overlay() -> Manifests:
    """What the overlay of the deploy page comes to, without its namespace's file."""
    (block,) = blocks(section(DEPLOY, "3. Write your overlay"), "yaml")
    shown = yaml.safe_load(block)
    resources, components = shown.pop("resources"), shown.pop("components")
    mine = K8S / "overlays" / "mine"  # a copy of prod
    assert resources == ["namespace.yaml", "../../base"]
    assert (K8S / "overlays" / "prod" / "namespace.yaml").is_file()
    assert all((mine / one).resolve().is_dir() for one in components)
    return overlay(shown, *(Path(one).name for one in components))


def test_the_first_overlay_needs_only_what_the_page_says() -> None:
    built = _first_overlay()
    names = re.findall(
        r"^  - \.\./\.\./components/(.+)$", section(DEPLOY, "3. Write your overlay"), re.MULTILINE
    )
    assert [one for one in ORDER if one in names] == names
    assert {one["apiVersion"] for one in built.documents} <= {
        "v1", "apps/v1", "policy/v1", "networking.k8s.io/v1", "cert-manager.io/v1"
    }  # fmt: skip
    read = {
        volume["secret"]["secretName"]
        for one in built.workloads()
        for volume in one.pod.get("volumes", ())
        if "secret" in volume
    }
    assert read - {one["spec"]["secretName"] for one in built.of("Certificate")} == {
        "evenmesh-keys", "evenmesh-postgres"
    }  # fmt: skip
    for name in SERVICES:
        given = built.workload(name).environment()
        assert {"EVENMESH_TLS_CERT", "EVENMESH_API_KEYS"} <= set(given)
        assert "EVENMESH_ALLOW_INSECURE" not in given
    assert not any("storageClassName" in claim["spec"] for claim in _claims(built))
    assert {one for claim in _claims(built) for one in claim["spec"]["accessModes"]} == {"ReadWriteOnce"}


def _claims(built: Manifests) -> list[dict[str, Any]]:
    of_sets = (one["spec"].get("volumeClaimTemplates", ()) for one in built.of("StatefulSet"))
    return [*built.of("PersistentVolumeClaim"), *(claim for claims in of_sets for claim in claims)]


def test_the_first_overlay_has_room_where_the_page_says_so() -> None:
    built = _first_overlay()
    resources = [one["resources"] for workload in built.workloads() for one in workload.containers]
    room = re.search(
        r"room for ([\d.]+) cores, (\d+) GiB of memory \(limits: (\d+) GiB\) and (\d+) GiB of volumes", DEPLOY
    )
    assert room is not None
    cores, memory, limits, volumes = room.groups()
    assert sum(_number(one["requests"]["cpu"]) for one in resources) == float(cores)
    asked = sum(_number(one["requests"]["memory"]) for one in resources)
    assert 0 <= int(memory) - asked < 1
    assert sum(_number(one["limits"]["memory"]) for one in resources) == int(limits)
    held = sum(_number(claim["spec"]["resources"]["requests"]["storage"]) for claim in _claims(built))
    assert held == int(volumes)


def _number(quantity: str) -> float:
    """Cores, or GiB."""
    found = re.fullmatch(r"([\d.]+)(m|Mi|Gi|)", quantity)
    assert found is not None, quantity
    return float(found[1]) / {"m": 1000, "Mi": 1024, "Gi": 1, "": 1}[found[2]]


def test_certificates_name_the_addresses_of_the_first_ask() -> None:
    targets = re.findall(r"EVENMESH_CLIENT_(\w+)_TARGET=(\w+):(\d+)", section(DEPLOY, "6. Ask"))
    forwarded = dict(re.findall(r"port-forward service/(\w+) (\d+):", section(DEPLOY, "6. Ask")))
    assert {name.lower(): port for name, _, port in targets} == forwarded
    certificates = {one["metadata"]["name"]: one["spec"] for one in _first_overlay().of("Certificate")}
    for name, host, _ in targets:
        assert host in certificates[name.lower()]["dnsNames"]


def test_images_are_those_of_the_overlays() -> None:
    for page in (DEPLOY, CONTAINERS):
        (loop,) = re.findall(r"^for service in (.*); do$", page, re.MULTILINE)
        assert set(loop.split()) == set(SERVICES)
    shown = {one.containers[0]["image"] for one in _first_overlay().workloads() if one.name in SERVICES}
    assert shown == {f"registry.example.com/evenmesh/{name}:{VERSION}" for name in SERVICES}
    pulled = {
        container["image"]
        for workload in build("prod").workloads()
        for container in workload.every_container
        if "example" in container["image"]
    }
    assert pulled == {
        f"registry.example.com/evenmesh/{name}:{VERSION}" for name in (*SERVICES, "gateway", "triton")
    }
    assert set(re.findall(r"\$REGISTRY/[$\w]+:(\S+)", DEPLOY + COMPONENTS)) == {VERSION}
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
    (block,) = blocks(section(COMPONENTS, "network-policy"), "yaml")
    policies = {one["metadata"]["name"]: one["spec"] for one in build("prod").of("NetworkPolicy")}
    for patch in yaml.safe_load(block)["patches"]:
        assert patch["target"]["kind"] == "NetworkPolicy"
        named = [name for name in policies if re.fullmatch(patch["target"]["name"], name)]
        assert named
        for operation in yaml.safe_load(patch["patch"]):
            assert (operation["op"], operation["path"]) == ("add", "/spec/egress/-")
            for name in named:
                assert policies[name]["egress"], name
