"""A step waits for the device once, whatever it selects. Counted on a CPU: what would wait for a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LogitsProcessorList

from evenmesh_generator.domain import Decoding
from evenmesh_generator.pointer.spans import SpanProcessor, Spans
from evenmesh_generator.pointer.tokenization import Block
from evenmesh_generator.runtime.decoding.rules import apply
from evenmesh_generator.runtime.decoding.sampler import Sampler
from evenmesh_generator.runtime.decoding.selection import select_tokens
from evenmesh_generator.runtime.decoding.sequences import BeamSequences, SingleSequence
from evenmesh_generator.runtime.loops.layout import Layout
from evenmesh_generator.runtime.networks.protocol import Joining, Prompt
from tests.support.operators import Waits
from tests.unit.generator.runtime.test_loop import Ids, Subject

KINDS = ["t5", "bart", "llama", "pointer"]
NEW = 8
DECODINGS = {
    "greedy": [Decoding(max_new_tokens=NEW)] * 3,
    "sampled": [Decoding(max_new_tokens=NEW, temperature=0.2, top_p=0.9, seed=at) for at in range(3)],
    "beams": [Decoding(max_new_tokens=NEW, num_beams=2 + at) for at in range(3)],
    "mixed": [
        Decoding(max_new_tokens=NEW),
        Decoding(max_new_tokens=NEW, temperature=0.2),
        Decoding(max_new_tokens=NEW, num_beams=3),
    ],
}


@pytest.fixture(scope="module")
def subjects(folders: dict[str, Path]) -> dict[str, Subject]:
    return {kind: Subject(kind, folders.get(kind)) for kind in KINDS}


def _sequence(subject: Subject, prompt: Prompt, decoding: Decoding) -> SingleSequence | BeamSequences:
    rest: Any = (subject.rules, None, prompt.start or prompt.rows[0], Ids(), lambda _: None)
    if decoding.num_beams > 1:
        return BeamSequences(decoding, *rest)
    return SingleSequence(decoding, "q", *rest)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", DECODINGS)
def test_a_step_waits_once(subjects: dict[str, Subject], kind: str, name: str) -> None:
    subject, decodings = subjects[kind], DECODINGS[name]
    network = subject.made()
    prompts = subject.prompts[:3]
    prefills = [network.prefill(prompt) for prompt in prompts]
    with torch.inference_mode():
        while not all(one.done for one in prefills):
            network.advance(prefills, 64)
        started = network.begin(prefills)
        rows, layout = network.rows(), Layout()
        rows.join([Joining(at, one, decodings[at].num_beams, 500) for at, one in enumerate(started)])
        sequences = {}
        for at, (prompt, how) in enumerate(zip(prompts, decodings, strict=True)):
            sequences[at] = _sequence(subject, prompt, how)
            layout.add(at, how.num_beams)
        waits = []
        while not any(one.done for one in sequences.values()):
            with Waits() as counted:
                tokens = [0] * len(layout)
                for owner, places in layout.rows.items():
                    for place, token in zip(places, sequences[owner].tokens, strict=True):
                        tokens[place] = token
                logits = rows.step(tokens)
                select_tokens(logits, layout.rows, sequences, normalised=network.normalised)
                parents = {at: one.parents for at, one in sequences.items() if one.parents is not None}
                rows.settle(layout.settle(parents, ()), layout.rows, {})
            waits.append(counted.count)
    assert waits, "nothing was selected"
    assert waits == [1] * len(waits), counted.calls


def test_an_unlikely_draw_waits_once_more(subjects: dict[str, Subject]) -> None:
    """Of 1,000 tokens of the same probability none is known to be among the likeliest."""
    decodings = [Decoding(temperature=1.0, seed=at) for at in range(3)]
    sequences = {
        at: _sequence(subjects["t5"], subjects["t5"].prompts[0], how) for at, how in enumerate(decodings)
    }
    with Waits() as counted:
        select_tokens(torch.zeros(3, 1000), {at: [at] for at in sequences}, sequences, normalised=False)
    assert counted.count == 2
    expected = [int(Sampler(how, "q").uniform() * 1000) for how in decodings]
    assert [one.tokens for one in sequences.values()] == [[token] for token in expected]


def test_the_rules_of_spans_read_no_tensor() -> None:
    """The bundled model's answers are spans: their processor reads tokens that the host has."""
    processor = SpanProcessor(1, [Spans([Block((5, 6, 7))])], end=2, abstention=3)
    scores = torch.zeros(1, 10)
    with Waits() as counted:
        allowed = apply(LogitsProcessorList([processor]), [[1, 5]], scores)
    assert counted.count == 0
    assert allowed.isfinite().nonzero()[:, 1].tolist() == [2, 6]
    assert torch.equal(processor(torch.tensor([[1, 5]]), scores), allowed)
