"""The mixture is exact, and caches, beams, padding and batching change nothing."""

import math

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional
from transformers import BertConfig, BertModel

import evenmesh_models
from evenmesh_generator.pointer.configuration import PointerConfig
from evenmesh_generator.pointer.mixture import Mixture
from evenmesh_generator.pointer.modeling import (
    PointerForConditionalGeneration,
    PointerSource,
    attention_in_float32,
)
from evenmesh_training.bundled.reader_warm_start import warm_start

Model = PointerForConditionalGeneration


def draw(*shape: int, seed: int = 1, low: int = 7, high: int = 40) -> Tensor:
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(seed))


def starts(model: Model, batch: int) -> Tensor:
    return torch.full((batch, 1), model.config.answer_token_id)


def test_mixture_is_the_weighted_sum_computed_by_hand() -> None:
    # V = 4, S = 3, source tokens 2, 0, 2: token 2 stands there twice.
    # softmax(ln 1, ln 2, ln 3, ln 4) = (.1, .2, .3, .4); g = sigmoid(ln 3) = 3/4
    mixture = Mixture(
        torch.tensor([1.0, 2.0, 3.0, 4.0]).log(), torch.tensor([0.5, 0.3, 0.2]), torch.tensor(math.log(3.0))
    )
    probabilities = mixture.log_probs(torch.tensor([2, 0, 2])).exp()
    expected = [
        0.25 * 0.1 + 0.75 * 0.3,
        0.25 * 0.2,
        0.25 * 0.3 + 0.75 * (0.5 + 0.2),
        0.25 * 0.4,
    ]
    assert probabilities.tolist() == pytest.approx(expected, abs=1e-6)
    assert float(probabilities.sum()) == pytest.approx(1.0, abs=1e-6)


def test_target_log_probs_are_entries_of_the_whole_distribution() -> None:
    generator = torch.Generator().manual_seed(3)
    mixture = Mixture(
        torch.randn(5, 9, generator=generator) * 3,
        torch.randn(5, 6, generator=generator).softmax(-1),
        torch.randn(5, generator=generator) * 3,
    )
    source = torch.randint(0, 9, (5, 6), generator=generator)
    whole = mixture.log_probs(source)
    for target in range(9):
        targets = torch.full((5,), target)
        torch.testing.assert_close(mixture.target_log_probs(source, targets), whole[:, target])


@pytest.mark.parametrize("gate", [-200.0, 200.0])
def test_mixture_stays_finite_and_differentiable_when_the_gate_saturates(gate: float) -> None:
    logits = torch.zeros(4, requires_grad=True)
    gate_logit = torch.tensor(gate, requires_grad=True)
    log_probs = Mixture(logits, torch.tensor([1.0, 0.0]), gate_logit).log_probs(torch.tensor([1, 2]))
    log_probs.sum().backward()
    expected = [0.25] * 4 if gate < 0 else [0.0, 1.0, 0.0, 0.0]
    assert log_probs.exp().tolist() == pytest.approx(expected, abs=1e-6)
    assert torch.isfinite(log_probs).all()
    assert logits.grad is not None
    assert torch.isfinite(logits.grad).all()
    assert gate_logit.grad is not None
    assert torch.isfinite(gate_logit.grad)


def test_logits_are_the_naive_mixture_of_the_parts(tiny: Model) -> None:
    source_ids, decoder_ids = draw(2, 9), draw(2, 4, seed=2)
    source_ids[:, 5] = source_ids[:, 1]
    with torch.no_grad():
        source = tiny.encoder(source_ids)
        states = tiny.decoder(decoder_ids, tiny.encoder.embeddings, source)
        copied, gate = tiny.head.copy(states, decoder_ids, source)
        vocab = tiny.head.vocab_logits(states, tiny.get_input_embeddings().weight).softmax(-1)
        logits = tiny(input_ids=source_ids, decoder_input_ids=decoder_ids).logits
    g = torch.sigmoid(gate)
    for row in range(2):
        for step in range(4):
            naive = (1 - g[row, step]) * vocab[row, step]
            for place in range(9):
                naive[source_ids[row, place]] += g[row, step] * copied[row, step, place]
            torch.testing.assert_close(logits[row, step].exp(), naive, atol=1e-6, rtol=1e-4)
    torch.testing.assert_close(logits.logsumexp(-1), torch.zeros(2, 4), atol=1e-5, rtol=0)
    torch.testing.assert_close(logits.log_softmax(-1), logits, atol=1e-5, rtol=0)
    assert 0.02 < float(g.min()) < float(g.max()) < 0.98  # both sides of the mixture are at work


def test_the_token_after_an_occurrence_of_the_last_output_is_favoured(tiny: Model) -> None:
    source_ids = torch.tensor([[6, 10, 11, 12, 10, 13]])
    with torch.no_grad():
        tiny.head.successor.weight.zero_()
        tiny.head.successor.bias.fill_(2.0)
        source = tiny.encoder(source_ids)
        states = tiny.decoder(torch.tensor([[10]]), tiny.encoder.embeddings, source)
        after_ten, _ = tiny.head.copy(states, torch.tensor([[10]]), source)
        after_none, _ = tiny.head.copy(states, torch.tensor([[39]]), source)
    ratio = (after_ten / after_none)[0, 0]
    followers = ratio[[2, 5]] / ratio[[0, 1]]  # places 2 and 5 follow a 10
    assert followers.tolist() == pytest.approx([math.exp(2.0)] * 2, rel=1e-4)
    assert ratio[[0, 1, 3, 4]].tolist() == pytest.approx([float(ratio[0])] * 4, rel=1e-4)


def test_step_by_step_with_cache_equals_all_at_once(tiny: Model) -> None:
    source_ids, decoder_ids = draw(3, 10), draw(3, 6, seed=2)
    with torch.no_grad():
        source = tiny.encoder(source_ids)
        whole = tiny(encoder_outputs=source, decoder_input_ids=decoder_ids).logits
        cache = None
        for step in range(6):
            output = tiny(
                encoder_outputs=source,
                decoder_input_ids=decoder_ids[:, step : step + 1],
                past_key_values=cache,
                use_cache=True,
            )
            cache = output.past_key_values
            torch.testing.assert_close(output.logits[:, 0], whole[:, step], atol=1e-4, rtol=1e-4)
    assert float((whole[:, 0] - whole[:, 5]).abs().max()) > 0.5  # the steps do differ


def test_greedy_generate_equals_an_uncached_loop(tiny: Model) -> None:
    source_ids = draw(6, 12)
    tokens = starts(tiny, 6)
    with torch.no_grad():
        for _ in range(8):
            logits = tiny(input_ids=source_ids, decoder_input_ids=tokens).logits[:, -1]
            tokens = torch.cat([tokens, logits.argmax(-1, keepdim=True)], 1)
    tiny.generation_config.eos_token_id = None
    generated = tiny.generate(input_ids=source_ids, max_new_tokens=8, do_sample=False, num_beams=1)
    assert generated.tolist() == tokens.tolist()
    assert len({tuple(row) for row in tokens.tolist()}) > 2
    assert max(len(set(row)) for row in tokens.tolist()) > 2  # not one token for ever


def test_beam_generate_equals_a_hand_written_beam_search(tiny: Model) -> None:
    source_ids = draw(1, 12, seed=5)
    width, steps = 3, 5
    beams: list[tuple[float, list[int]]] = [(0.0, [tiny.config.answer_token_id])]
    with torch.no_grad():
        for _ in range(steps):
            grown = []
            for score, tokens in beams:
                logits = tiny(input_ids=source_ids, decoder_input_ids=torch.tensor([tokens])).logits[0, -1]
                grown += [(score + float(value), [*tokens, token]) for token, value in enumerate(logits)]
            beams = sorted(grown, reverse=True)[:width]
    tiny.generation_config.eos_token_id = None
    output = tiny.generate(
        input_ids=source_ids,
        max_new_tokens=steps,
        num_beams=width,
        num_return_sequences=width,
        do_sample=False,
        length_penalty=0.0,
        return_dict_in_generate=True,
        output_scores=True,
    )
    assert output.sequences.tolist() == [tokens for _, tokens in beams]
    assert output.sequences_scores.tolist() == pytest.approx([score for score, _ in beams], abs=1e-4)
    assert len({tuple(tokens) for _, tokens in beams}) == width


def test_passages_are_encoded_apart_and_laid_side_by_side(tiny: Model) -> None:
    passages = draw(2, 3, 7)
    types = torch.zeros_like(passages)
    types[..., 3:] = 1
    with torch.no_grad():
        fused = tiny.encoder(passages, torch.ones_like(passages), types)
        for row in range(2):
            apart = [tiny.encoder(passages[row, i : i + 1], None, types[row, i : i + 1]) for i in range(3)]
            for name, values in fused.items():
                torch.testing.assert_close(
                    values[row], torch.cat([a[name] for a in apart], 1)[0], atol=1e-5, rtol=1e-4
                )


def test_padding_changes_nothing(tiny: Model) -> None:
    source_ids, decoder_ids = draw(1, 2, 8), draw(1, 3, seed=2)
    with torch.no_grad():
        plain = tiny(input_ids=source_ids, decoder_input_ids=decoder_ids).logits
        # four tokens of padding in each passage, and a third passage that is nothing but padding
        padded = torch.zeros(1, 3, 12, dtype=torch.long)
        padded[:, :2, :8] = source_ids
        mask = torch.zeros_like(padded)
        mask[:, :2, :8] = 1
        masked = tiny(input_ids=padded, attention_mask=mask, decoder_input_ids=decoder_ids).logits
        unmasked = tiny(input_ids=padded, decoder_input_ids=decoder_ids).logits
    torch.testing.assert_close(masked, plain, atol=1e-4, rtol=1e-4)
    assert float((unmasked - plain).abs().max()) > 0.1  # the padding would matter


def test_a_row_is_the_same_alone_and_in_a_batch(tiny: Model) -> None:
    source_ids, decoder_ids = draw(3, 8), draw(3, 4, seed=2)
    with torch.no_grad():
        together = tiny(input_ids=source_ids, decoder_input_ids=decoder_ids).logits
        for row in range(3):
            alone = tiny(
                input_ids=source_ids[row : row + 1], decoder_input_ids=decoder_ids[row : row + 1]
            ).logits
            torch.testing.assert_close(together[row], alone[0], atol=1e-4, rtol=1e-4)


def test_selected_pairs_decode_as_if_they_were_encoded_for_it(tiny: Model) -> None:
    pairs, decoder_ids = draw(4, 6), draw(2, 3, seed=2)
    rows = torch.tensor([[3, 0], [1, 2]])
    targets = torch.tensor([[8, 9, -1], [10, 11, 12]])
    with torch.no_grad():
        source = tiny.encoder(pairs)
        picked, cache = tiny.select(source, tiny.decoder.project(source.last_hidden_state), rows)
        found = tiny.sequence_log_probs(decoder_ids, targets, picked, cache)
        logits = tiny(input_ids=pairs[rows], decoder_input_ids=decoder_ids).logits
    expected = [logits[b, t, targets[b, t]] for b in range(2) for t in range(3) if targets[b, t] >= 0]
    torch.testing.assert_close(found, torch.stack(expected), atol=1e-4, rtol=1e-4)


def test_the_start_token_chooses_the_task(tiny: Model) -> None:
    source_ids = draw(2, 8)
    with torch.no_grad():
        embeddings = tiny.get_input_embeddings().weight
        embeddings[tiny.config.relevance_token_id] = embeddings[tiny.config.answer_token_id]
        answer = tiny(input_ids=source_ids, decoder_input_ids=torch.tensor([[1], [1]])).logits
        relevance = tiny(input_ids=source_ids, decoder_input_ids=torch.tensor([[2], [2]])).logits
        assert float((answer - relevance).abs().max()) > 0.05  # by the task embedding alone
        tiny.decoder.task_embeddings.weight.zero_()
        same = tiny(input_ids=source_ids, decoder_input_ids=torch.tensor([[2], [2]])).logits
        again = tiny(input_ids=source_ids, decoder_input_ids=torch.tensor([[1], [1]])).logits
    torch.testing.assert_close(same, again)


@pytest.mark.parametrize("missing", ["source", "decoder"])
def test_incomplete_input_is_refused(tiny: Model, missing: str) -> None:
    arguments = {"input_ids": draw(1, 5), "decoder_input_ids": starts(tiny, 1)}
    del arguments["input_ids" if missing == "source" else "decoder_input_ids"]
    with pytest.raises(ValueError, match="give"):
        tiny(**arguments)


def test_attention_is_computed_in_float32_under_autocast() -> None:
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(1, 2, 5, 8, generator=generator).bfloat16() for _ in range(3))
    mask = torch.tensor([True, True, True, False, True])[None, None, None, :].expand(1, 1, 5, 5)
    module = torch.nn.Module()
    module.is_causal = False  # type: ignore[assignment]
    with torch.autocast("cpu", torch.bfloat16):
        output, _ = attention_in_float32(module, query, key, value, mask)
    scores = (query.float() @ key.float().transpose(-1, -2) / 8**0.5).masked_fill(~mask, float("-inf"))
    expected = (scores.softmax(-1) @ value.float()).transpose(1, 2).bfloat16()
    assert output.dtype is torch.bfloat16
    torch.testing.assert_close(output, expected, atol=0, rtol=1e-2)


def test_bfloat16_autocast_returns_a_distribution(tiny: Model) -> None:
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        logits = tiny(input_ids=draw(2, 8), decoder_input_ids=draw(2, 3, seed=2)).logits
    assert logits.dtype is torch.float32
    torch.testing.assert_close(logits.logsumexp(-1), torch.zeros(2, 3), atol=1e-5, rtol=0)


def test_the_warm_started_encoder_is_the_base_model() -> None:
    weights = load_file(evenmesh_models.minilm() / evenmesh_models.WEIGHTS)
    model = warm_start(PointerConfig(), weights, seed=0)
    bert = BertModel(
        BertConfig.from_pretrained(evenmesh_models.minilm(), hidden_dropout_prob=0.0), add_pooling_layer=False
    )
    bert.load_state_dict({k: v for k, v in weights.items() if not k.startswith("pooler")}, strict=False)
    bert.train(False)
    ids = torch.tensor([[101, 2040, 2003, 102, 7592, 2088, 102], [101, 2054, 102, 2023, 102, 0, 0]])
    mask = (ids != 0).long()
    types = torch.tensor([[0, 0, 0, 0, 1, 1, 1], [0, 0, 0, 1, 1, 0, 0]])
    with torch.no_grad():
        ours = model.encoder(ids, mask, types).last_hidden_state
        theirs = bert(ids, attention_mask=mask, token_type_ids=types).last_hidden_state
    torch.testing.assert_close(ours[mask.bool()], theirs[mask.bool()], atol=1e-4, rtol=1e-3)
    torch.testing.assert_close(
        model.decoder.layers[1].crossattention.self.value.weight,
        weights["encoder.layer.5.attention.self.value.weight"],
    )


def test_source_is_copied_only_where_it_is_not_padding(tiny: Model) -> None:
    source = PointerSource(
        last_hidden_state=torch.ones(1, 4, 16),
        source_ids=torch.tensor([[7, 8, 0, 0]]),
        source_mask=torch.tensor([[True, True, False, False]]),
        copy_keys=torch.ones(1, 4, 16),
    )
    with torch.no_grad():
        copied, _ = tiny.head.copy(torch.ones(1, 1, 16), torch.tensor([[9]]), source)
    assert copied[0, 0].tolist() == pytest.approx([0.5, 0.5, 0.0, 0.0])
    assert functional.relu(-copied).sum() == 0
