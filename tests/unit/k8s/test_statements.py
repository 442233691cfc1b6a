"""Evaluators sign with the key of a Secret, where the component brings it to them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from evenmesh.statements import new_key
from evenmesh_evaluator.settings import EvaluatorSettings
from evenmesh_evaluator.statements.signing import Signer
from evenmesh_kit.settings import load
from tests.support.manifests import build, with_components

GUIDE = Path(__file__).parents[3] / "docs" / "guides" / "statements.md"
COMMAND = "kubectl --namespace evenmesh create secret generic evenmesh-statements --from-file=signing.pem"


@pytest.mark.parametrize(
    "components", [["statements"], ["postgres", "evaluator-replicas", "statements", "mtls"]]
)
def test_every_evaluator_reads_the_key_of_the_secret(
    components: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in [one for one in os.environ if one.startswith("EVENMESH_")]:
        monkeypatch.delenv(name)
    evaluator = with_components(*components).workload("evaluator")
    for key, value in {**evaluator.environment(), "EVENMESH_ALLOW_INSECURE": "true"}.items():
        monkeypatch.setenv(key, value)
    path = load(EvaluatorSettings).statement_key
    assert path is not None
    (mount,) = (
        one for one in evaluator.containers[0]["volumeMounts"] if one["mountPath"] == str(path.parent)
    )
    assert mount["readOnly"] is True
    assert "subPath" not in mount, "a file of its own would stay as it was when the Secret changes"
    (volume,) = (one for one in evaluator.pod["volumes"] if one["name"] == mount["name"])
    assert volume["secret"]["secretName"] == "evenmesh-statements"
    # What the guide puts into the Secret is found under the name that the setting has.
    assert COMMAND in GUIDE.read_text()
    new_key(tmp_path / path.name)
    assert Signer(tmp_path / "signing.pem").sign(b"one").signatures


def test_without_the_component_nothing_is_signed() -> None:
    for name in ("base", "dev", "prod"):
        environment = build(name).workload("evaluator").environment()
        assert "EVENMESH_EVALUATOR_STATEMENT_KEY" not in environment
