"""Names of the conventions for generative AI."""

from __future__ import annotations

import pytest

from evenmesh_kit.telemetry import gen_ai


def test_names_are_those_of_the_conventions() -> None:
    attributes = pytest.importorskip("opentelemetry.semconv._incubating.attributes.gen_ai_attributes")
    known = {value for name, value in vars(attributes).items() if name.startswith("GEN_AI_")}
    ours = {value for name, value in vars(gen_ai).items() if name.isupper() and isinstance(value, str)}
    operations = {gen_ai.EMBEDDINGS, gen_ai.RETRIEVAL, gen_ai.TEXT_COMPLETION}
    assert ours - operations <= known
    assert operations <= {one.value for one in attributes.GenAiOperationNameValues}
