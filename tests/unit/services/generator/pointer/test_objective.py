"""The training loss is the mean over examples decoded one by one, and reaches every trained tensor."""

import pytest
import torch

from services.generator.pointer.examples import Example, collate
from services.generator.pointer.modeling import PointerForConditionalGeneration
from services.generator.pointer.objective import losses
from services.generator.pointer.tokenization import Pair


def make(*ids: int) -> Pair:
    return Pair(ids, 3, 3, 0)


EXAMPLES = [
    Example(
        make(6, 10, 3, 11, 12, 13, 3), make(6, 10, 3, 14, 15, 3), (12, 13, 3), fused=False, swapped=False
    ),
    Example(make(6, 16, 3, 17, 3), make(6, 16, 3, 18, 19, 20, 3), (17, 3), fused=True, swapped=True),
    Example(make(6, 21, 3, 22, 23, 24, 3), None, (22, 23, 24, 3), fused=False, swapped=False),
]


def alone(
    model: PointerForConditionalGeneration, pairs: list[Pair], start: int, target: tuple[int, ...]
) -> list[float]:
    """log P of every target token, decoded from ``pairs`` without any batching."""
    sources = [
        model.encoder(
            torch.tensor([p.ids]), None, torch.tensor([[0] * p.boundary + [1] * (len(p.ids) - p.boundary)])
        )
        for p in pairs
    ]
    source = type(sources[0])(**{n: torch.cat([s[n] for s in sources], 1) for n in sources[0]})
    logits = model(encoder_outputs=source, decoder_input_ids=torch.tensor([[start, *target[:-1]]])).logits[0]
    return [float(logits[step, token]) for step, token in enumerate(target)]


def test_losses_equal_decoding_each_example_by_itself(tiny: PointerForConditionalGeneration) -> None:
    first, second, third = EXAMPLES
    assert first.negative is not None
    assert second.negative is not None
    with torch.no_grad():
        found = losses(tiny, collate(EXAMPLES, answer_token=1))
        answers = [
            *alone(tiny, [first.gold], 1, first.answer),
            *alone(tiny, [second.negative, second.gold], 1, second.answer),
            *alone(tiny, [third.gold], 1, third.answer),
        ]
        gold = [alone(tiny, [e.gold], 2, (4,))[0] for e in EXAMPLES]
        negative = [alone(tiny, [e.negative], 2, (5,))[0] for e in (first, second) if e.negative]
    relevance = -(sum(gold) / 3 + sum(negative) / 2) / 2  # both classes weigh the same
    assert float(found.answer) == pytest.approx(-sum(answers) / len(answers), abs=1e-4)
    assert float(found.relevance) == pytest.approx(relevance, abs=1e-4)
    assert float(found.total) == pytest.approx(float(found.answer) + 0.5 * relevance, abs=1e-4)


def test_every_trained_tensor_learns_and_no_frozen_one(tiny: PointerForConditionalGeneration) -> None:
    losses(tiny, collate(EXAMPLES, answer_token=1)).total.backward()
    reached = {n for n, p in tiny.named_parameters() if p.grad is not None and bool(p.grad.abs().sum() > 0)}
    frozen = {
        n for n, _ in tiny.named_parameters() if n.startswith(("encoder.embeddings.", "encoder.layers.0."))
    }
    # a key's bias shifts all scores of a query alike, so softmax leaves it without a gradient
    idle = {n for n, _ in tiny.named_parameters() if n.endswith(("self.key.bias", "copy_key.bias"))}
    assert reached | idle == {n for n, _ in tiny.named_parameters()} - frozen | idle
    assert not reached & frozen


def test_a_batch_without_negatives_has_both_losses(tiny: PointerForConditionalGeneration) -> None:
    with torch.no_grad():
        found = losses(tiny, collate(EXAMPLES[2:], answer_token=1))
        expected = -alone(tiny, [EXAMPLES[2].gold], 2, (4,))[0]
    assert float(found.relevance) == pytest.approx(expected, abs=1e-4)
    assert float(found.answer) > 0
