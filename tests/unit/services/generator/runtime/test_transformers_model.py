"""What a transformers model reads and writes: prompts, truncation, Fusion-in-Decoder, relevance, batches."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from meshkit.errors import FailedPrecondition, InvalidField, MeshError
from meshkit.placement import Placement
from services.generator.runtime.loading import load
from services.generator.runtime.transformers import TransformersModel
from services.generator.domain import (
    Answer,
    Augmentation,
    Decoding,
    FinishReason,
    GenerationRequest,
    Normalization,
    Passage,
)
from services.generator.ports import Cancellation, Cancelled
from services.generator.prompts import TemplateLibrary
from tests.tiny_models import SENTENCES, plain

TEMPLATES = TemplateLibrary.bundled()
PASSAGES = tuple(Passage(str(at), f"Title {at}", text) for at, text in enumerate(SENTENCES[1:5]))
QUESTION = SENTENCES[0]
KINDS = ["t5", "bart", "llama", "llama-chat"]
CPU = Placement(torch.device("cpu"), torch.float32)


def _model(folder: Path, **options: Any) -> TransformersModel:
    return TransformersModel("tiny", "v", *load(folder, CPU), TEMPLATES, **options)


@pytest.fixture(scope="module")
def models(folders: dict[str, Path]) -> dict[str, TransformersModel]:
    return {kind: _model(folder) for kind, folder in folders.items()}


def _write(model: TransformersModel, request: GenerationRequest) -> tuple[Answer, list[str]]:
    deltas: list[str] = []
    return model.stream(request, Cancellation(), deltas.append), deltas


def _request(**fields: Any) -> GenerationRequest:
    decoding = Decoding(max_new_tokens=12)
    base = GenerationRequest(QUESTION, PASSAGES, augmentation=Augmentation.IN_PROMPT, decoding=decoding)
    return replace(base, **fields)


def _plain_text(folder: Path, prompt: str, *, num_beams: int = 1, special: bool = True, new: int = 12) -> str:
    """What a user of transformers gets for a prompt."""
    model, tokenizer = plain(folder)
    ids = tokenizer(prompt, return_tensors="pt", return_token_type_ids=False, add_special_tokens=special)
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
    out = model.generate(**ids, num_beams=num_beams, do_sample=False, max_new_tokens=new, pad_token_id=pad)[0]
    skip = 1 if model.config.is_encoder_decoder else ids.input_ids.shape[1]
    return str(tokenizer.decode(out[skip:], skip_special_tokens=True))


@pytest.mark.parametrize("num_beams", [1, 4])
@pytest.mark.parametrize(
    ("kind", "template"), [("t5", "ra-x"), ("bart", "ra-x"), ("llama", "rankrag-answer")]
)
def test_in_prompt_answers_are_those_of_the_default_template(
    models: dict[str, TransformersModel], folders: dict[str, Path], kind: str, template: str, num_beams: int
) -> None:
    answer, deltas = _write(models[kind], _request(decoding=Decoding(num_beams=num_beams, max_new_tokens=12)))
    prompt = TEMPLATES.get(template).render(QUESTION, PASSAGES)
    assert answer.text == "".join(deltas) == _plain_text(folders[kind], prompt, num_beams=num_beams)
    assert answer.text
    assert len(deltas) == 1 if num_beams > 1 else len(deltas) > 1
    assert answer.dropped_passages == 0


def test_a_chat_model_gets_its_chat_template(
    models: dict[str, TransformersModel], folders: dict[str, Path]
) -> None:
    answer, _ = _write(models["llama-chat"], _request())
    asked = TEMPLATES.get("eor-retrieval-augmented-llama2-chat").render(QUESTION, PASSAGES)
    prompt = f"<|user|>{asked}</s><|assistant|>"
    assert answer.text == _plain_text(folders["llama-chat"], prompt, special=False)


@pytest.mark.parametrize(
    ("kind", "template"), [("t5", "question"), ("llama", "eor-retrieval-free-llama2-chat")]
)
def test_retrieval_free(
    models: dict[str, TransformersModel], folders: dict[str, Path], kind: str, template: str
) -> None:
    answer, _ = _write(models[kind], _request(passages=(), augmentation=Augmentation.RETRIEVAL_FREE))
    assert answer.text == _plain_text(folders[kind], TEMPLATES.get(template).render(QUESTION))


def test_a_template_by_name(models: dict[str, TransformersModel], folders: dict[str, Path]) -> None:
    answer, _ = _write(models["t5"], _request(template="rankrag-answer.v1"))
    assert answer.text == _plain_text(
        folders["t5"], TEMPLATES.get("rankrag-answer").render(QUESTION, PASSAGES)
    )


def test_a_template_from_the_settings(folders: dict[str, Path]) -> None:
    answer, _ = _write(_model(folders["t5"], template="rankrag-answer"), _request())
    assert answer.text == _plain_text(
        folders["t5"], TEMPLATES.get("rankrag-answer").render(QUESTION, PASSAGES)
    )


@pytest.mark.parametrize("num_beams", [1, 4])
@pytest.mark.parametrize("kind", ["t5", "bart"])
def test_fusion_in_decoder_attends_to_separately_encoded_passages(
    models: dict[str, TransformersModel], folders: dict[str, Path], kind: str, num_beams: int
) -> None:
    """The reference: passages encoded one by one, states joined, decoded by plain ``generate``."""
    request = _request(
        augmentation=Augmentation.FUSION_IN_DECODER, decoding=Decoding(num_beams=num_beams, max_new_tokens=12)
    )
    answer, _ = _write(models[kind], request)
    model, tokenizer = plain(folders[kind])
    template = TEMPLATES.get("fusion-in-decoder")
    rows = [tokenizer(template.render(QUESTION, [one]), return_tensors="pt").input_ids for one in PASSAGES]
    with torch.inference_mode():
        states = torch.cat([model.get_encoder()(input_ids=row).last_hidden_state for row in rows], 1)
    from transformers.modeling_outputs import BaseModelOutput

    out = model.generate(
        encoder_outputs=BaseModelOutput(last_hidden_state=states),
        attention_mask=torch.ones(states.shape[:2], dtype=torch.long),
        num_beams=num_beams,
        do_sample=False,
        max_new_tokens=12,
    )[0]
    assert answer.text == tokenizer.decode(out[1:], skip_special_tokens=True)
    assert answer.prompt_tokens == states.shape[1]


def test_fusion_in_decoder_does_not_know_the_order(models: dict[str, TransformersModel]) -> None:
    """T5's cross-attention has no positions, so that permuted passages are the same passages."""
    request = _request(augmentation=Augmentation.FUSION_IN_DECODER)
    first, _ = _write(models["t5"], request)
    second, _ = _write(models["t5"], replace(request, passages=PASSAGES[::-1]))
    assert first.text == second.text
    assert first.log_probability == pytest.approx(second.log_probability, abs=1e-3)


def test_passages_that_do_not_fit_are_dropped_from_the_end(folders: dict[str, Path]) -> None:
    model = _model(folders["t5"])
    many = tuple(Passage(str(at), "", SENTENCES[at % 8]) for at in range(40))
    answer, _ = _write(model, _request(passages=many))
    kept = len(many) - answer.dropped_passages
    assert 0 < kept < len(many)
    render = TEMPLATES.get("ra-x").render
    assert answer.text == _plain_text(folders["t5"], render(QUESTION, many[:kept]))
    _, tokenizer = plain(folders["t5"])
    assert answer.prompt_tokens == len(tokenizer(render(QUESTION, many[:kept])).input_ids) <= 512
    assert len(tokenizer(render(QUESTION, many[: kept + 1])).input_ids) > 512


def test_a_decoder_only_model_keeps_room_for_its_answer(folders: dict[str, Path]) -> None:
    model = _model(folders["llama"], max_input_tokens=400)
    many = tuple(Passage(str(at), "", SENTENCES[at % 8]) for at in range(40))
    short, _ = _write(model, _request(passages=many, decoding=Decoding(max_new_tokens=10)))
    long, _ = _write(model, _request(passages=many, decoding=Decoding(max_new_tokens=100)))
    assert short.prompt_tokens + 10 <= 400
    assert long.prompt_tokens + 100 <= 400
    assert long.dropped_passages > short.dropped_passages


def test_a_first_passage_too_long_is_cut_and_not_dropped(folders: dict[str, Path]) -> None:
    model = _model(folders["t5"])
    long = Passage("a", "", " ".join(SENTENCES * 10))
    answer, _ = _write(model, _request(passages=(long, PASSAGES[0])))
    assert answer.dropped_passages == 1
    assert 500 <= answer.prompt_tokens <= 512


@pytest.mark.parametrize("augmentation", [Augmentation.IN_PROMPT, Augmentation.FUSION_IN_DECODER])
def test_a_question_too_long_is_an_error_and_never_cut(
    models: dict[str, TransformersModel], augmentation: Augmentation
) -> None:
    question = " ".join(SENTENCES * 10)
    with pytest.raises(InvalidField, match=r"makes a prompt of \d+ tokens; tiny reads at most 512") as caught:
        _write(models["t5"], _request(question=question, augmentation=augmentation))
    assert caught.value.field == "question"
    with pytest.raises(InvalidField, match="reads at most 512"):
        models["t5"].relevance(question, PASSAGES, Normalization.TRUE_FALSE, Cancellation())


def test_fusion_cuts_long_passages_each_for_itself(models: dict[str, TransformersModel]) -> None:
    long = Passage("a", "", " ".join(SENTENCES * 10))
    answer, _ = _write(
        models["t5"], _request(passages=(long, long), augmentation=Augmentation.FUSION_IN_DECODER)
    )
    assert answer.dropped_passages == 0
    assert 1000 <= answer.prompt_tokens <= 1024


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_answers_as_each_request_alone(models: dict[str, TransformersModel], kind: str) -> None:
    """Mixed decodings, lengths and augmentations, one that fails, more rows than one batch holds."""
    model = models[kind]
    requests = [
        _request(
            question=SENTENCES[at % 8],
            passages=PASSAGES[: 1 + at % 4],
            decoding=Decoding(
                num_beams=(1, 4, 1)[at % 3], max_new_tokens=8, temperature=(0.0, 0.0, 1.0)[at % 3], seed=at
            ),
        )
        for at in range(18)
    ]
    if Augmentation.FUSION_IN_DECODER in model.describe().augmentations:
        requests[3] = replace(requests[3], augmentation=Augmentation.FUSION_IN_DECODER)
    requests[5] = replace(requests[5], question="word " * 3000)
    outcomes = model.batch(requests, Cancellation())
    assert len(outcomes) == len(requests)
    for at, (request, outcome) in enumerate(zip(requests, outcomes, strict=True)):
        if at == 5:
            assert isinstance(outcome, InvalidField)
            continue
        assert not isinstance(outcome, MeshError)
        alone, _ = _write(model, request)
        assert replace(outcome, log_probability=0.0) == replace(alone, log_probability=0.0)
        assert outcome.log_probability == pytest.approx(alone.log_probability, abs=1e-3)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("normalization", list(Normalization))
def test_relevance_is_the_probability_of_true(
    models: dict[str, TransformersModel], folders: dict[str, Path], kind: str, normalization: Normalization
) -> None:
    """The reference: one pass of the plain model per passage over RankRAG's prompt (appendix D.1)."""
    model, tokenizer = plain(folders[kind])
    expected = []
    for passage in PASSAGES:
        prompt = TEMPLATES.get("rankrag-context-ranking").render(QUESTION, [passage])
        ids = tokenizer(prompt, return_tensors="pt", return_token_type_ids=False).input_ids
        with torch.inference_mode():
            if kind == "t5":
                true, false = (tokenizer(word).input_ids[0] for word in ("True", "False"))
                start = torch.tensor([[model.generation_config.decoder_start_token_id]])
                logits = model(input_ids=ids, decoder_input_ids=start).logits[0, -1]
            elif kind == "bart":  # writes <s> before its first word
                true, false = (tokenizer(word).input_ids[1] for word in ("True", "False"))
                start = torch.tensor([[model.generation_config.decoder_start_token_id, 0]])
                logits = model(input_ids=ids, decoder_input_ids=start).logits[0, -1]
            else:
                true, false = (tokenizer(f" {word}").input_ids[1] for word in ("True", "False"))
                logits = model(input_ids=ids).logits[0, -1]
        probabilities = logits.double().softmax(-1)
        p_true, p_false = float(probabilities[true]), float(probabilities[false])
        over_both = normalization is Normalization.TRUE_FALSE
        expected.append(p_true / (p_true + p_false) if over_both else p_true)
    got = models[kind].relevance(QUESTION, PASSAGES, normalization, Cancellation())
    assert got == pytest.approx(expected, rel=1e-3, abs=1e-9)
    assert len({round(value, 12) for value in got}) == len(PASSAGES)


def test_relevance_does_not_depend_on_what_is_judged_beside(models: dict[str, TransformersModel]) -> None:
    passages = [Passage(str(at), "", " ".join(SENTENCES[: 1 + at % 7])) for at in range(40)]
    together = models["t5"].relevance(QUESTION, passages, Normalization.TRUE_FALSE, Cancellation())
    backwards = models["t5"].relevance(QUESTION, passages[::-1], Normalization.TRUE_FALSE, Cancellation())
    assert backwards[::-1] == pytest.approx(together, rel=1e-4)
    for at in (0, 17, 39):
        (alone,) = models["t5"].relevance(
            QUESTION, passages[at : at + 1], Normalization.TRUE_FALSE, Cancellation()
        )
        assert alone == pytest.approx(together[at], rel=1e-4)


def test_a_long_passage_is_judged_by_its_beginning(models: dict[str, TransformersModel]) -> None:
    long = Passage("a", "", " ".join(SENTENCES * 10))
    longer = Passage("b", "", " ".join(SENTENCES * 20))
    first, second = models["t5"].relevance(QUESTION, [long, longer], Normalization.TRUE_FALSE, Cancellation())
    assert first == pytest.approx(second, rel=1e-4)


def test_a_tokenizer_that_does_not_tell_true_from_false(folders: dict[str, Path]) -> None:
    model, tokenizer = load(folders["t5"], CPU)
    vocabulary = {"<pad>": 0, "</s>": 1, "<unk>": 2, "▁": 3}
    from tokenizers import Tokenizer, models

    tokenizer._tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))  # noqa: S106
    blind = TransformersModel("blind", "v", model, tokenizer, TEMPLATES)
    assert not blind.describe().scores_relevance
    with pytest.raises(FailedPrecondition, match="does not tell True from False"):
        blind.relevance(QUESTION, PASSAGES, Normalization.TRUE_FALSE, Cancellation())


def test_descriptions(models: dict[str, TransformersModel]) -> None:
    t5, bart, llama, chat = (models[kind].describe() for kind in KINDS)
    assert t5.augmentations == (
        Augmentation.IN_PROMPT,
        Augmentation.FUSION_IN_DECODER,
        Augmentation.RETRIEVAL_FREE,
    )
    assert (t5.architecture, t5.engine, t5.device, t5.dtype) == (
        "T5ForConditionalGeneration",
        "transformers",
        "cpu",
        "float32",
    )
    assert (t5.max_input_tokens, t5.max_new_tokens) == (512, 4096)
    assert (bart.max_input_tokens, bart.max_new_tokens) == (512, 511)
    assert (llama.max_input_tokens, llama.max_new_tokens) == (1024, 1023)
    assert llama.augmentations == (Augmentation.IN_PROMPT, Augmentation.RETRIEVAL_FREE)
    assert chat.augmentations[-2:] == (Augmentation.PARAMETRIC_KNOWLEDGE, Augmentation.COMPRESSION)
    assert all(one.scores_relevance for one in (t5, bart, llama, chat))


def test_a_t5_reads_more_than_its_tokenizer_says_where_the_setting_does(folders: dict[str, Path]) -> None:
    assert _model(folders["t5"], max_input_tokens=2048).describe().max_input_tokens == 2048
    assert _model(folders["bart"], max_input_tokens=2048).describe().max_input_tokens == 512


def test_instruction_by_setting(folders: dict[str, Path]) -> None:
    can = _model(folders["t5"], instruction=True).describe().augmentations
    assert Augmentation.PARAMETRIC_KNOWLEDGE in can
    can = _model(folders["llama-chat"], instruction=False).describe().augmentations
    assert Augmentation.PARAMETRIC_KNOWLEDGE not in can


def test_cancelled_while_encoding(models: dict[str, TransformersModel]) -> None:
    cancel = Cancellation()
    cancel.cancel()
    with pytest.raises(Cancelled):
        models["t5"].relevance(QUESTION, PASSAGES, Normalization.TRUE_FALSE, cancel)
    with pytest.raises(Cancelled):
        models["t5"].batch([_request()], cancel)


def test_finish_reasons(models: dict[str, TransformersModel]) -> None:
    answers = models["t5"].batch(
        [
            GenerationRequest(
                text, augmentation=Augmentation.RETRIEVAL_FREE, decoding=Decoding(max_new_tokens=16)
            )
            for text in SENTENCES
        ],
        Cancellation(),
    )
    reasons = {answer.finish_reason for answer in answers if isinstance(answer, Answer)}
    assert reasons == {FinishReason.STOP, FinishReason.LENGTH}
