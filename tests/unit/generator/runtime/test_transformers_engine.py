"""What a transformers model reads and writes: prompts, truncation, Fusion-in-Decoder, relevance, batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from evenmesh.wire.errors import FailedPrecondition, InvalidField, MeshError, NotFound
from evenmesh_generator.domain import (
    Answer,
    Augmentation,
    Decoding,
    FinishReason,
    GenerationRequest,
    Normalization,
    Passage,
    RelevanceRequest,
    Turn,
)
from evenmesh_generator.ports import Cancellation, Cancelled
from evenmesh_generator.prompts import TemplateLibrary
from evenmesh_generator.runtime.engine import LanguageEngine
from evenmesh_generator.runtime.loading import load
from evenmesh_generator.runtime.networks.attention import ATTENTION
from evenmesh_generator.runtime.networks.causal import BLOCK, CausalNetwork, CausalRows
from evenmesh_generator.runtime.networks.continuous_batching import supports_continuous_batching
from evenmesh_generator.runtime.networks.protocol import Prompt
from evenmesh_generator.runtime.options import EngineOptions
from evenmesh_generator.runtime.prompts import text_prompter
from evenmesh_generator.runtime.prompts.text_prompter import RANKING_TEMPLATE, TextPrompter
from evenmesh_generator.runtime.tasks import Outcome
from evenmesh_generator.runtime.transformers_engines import transformers_engine
from tests.support.tiny_engines import CPU, TEMPLATES, submit, transformers, write
from tests.support.tiny_models import SENTENCES, plain

PASSAGES = tuple(Passage(str(at), f"Title {at}", text) for at, text in enumerate(SENTENCES[1:5]))
QUESTION = SENTENCES[0]
KINDS = ["t5", "bart", "llama", "llama-chat"]


@pytest.fixture(scope="module")
def models(folders: dict[str, Path]) -> Iterator[dict[str, LanguageEngine]]:
    engines = {kind: transformers(folder) for kind, folder in folders.items()}
    yield engines
    for engine in engines.values():
        engine.close()


@pytest.fixture
def model_of() -> Iterator[Callable[..., LanguageEngine]]:
    """Engines of a test's own."""
    engines: list[LanguageEngine] = []

    def make(folder: Path, **options: Any) -> LanguageEngine:
        engines.append(transformers(folder, **options))
        return engines[-1]

    yield make
    for engine in engines:
        engine.close()


def _batch(model: LanguageEngine, requests: Sequence[GenerationRequest]) -> list[Outcome]:
    return [ear.outcome() for ear in [submit(model, request) for request in requests]]


def _judge(
    model: LanguageEngine,
    question: str,
    passages: Sequence[Passage],
    normalization: Normalization = Normalization.TRUE_FALSE,
    **fields: Any,
) -> list[float]:
    request = RelevanceRequest(question, tuple(passages), normalization, **fields)
    return model.judge(request, Cancellation()).result()


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
    models: dict[str, LanguageEngine], folders: dict[str, Path], kind: str, template: str, num_beams: int
) -> None:
    answer, deltas = write(models[kind], _request(decoding=Decoding(num_beams=num_beams, max_new_tokens=12)))
    prompt = TEMPLATES.get(template).render(QUESTION, PASSAGES)
    assert answer.text == "".join(deltas) == _plain_text(folders[kind], prompt, num_beams=num_beams)
    assert answer.text
    assert len(deltas) == 1 if num_beams > 1 else len(deltas) > 1
    assert answer.dropped_passages == 0


def test_a_chat_model_gets_its_chat_template(
    models: dict[str, LanguageEngine], folders: dict[str, Path]
) -> None:
    answer, _ = write(models["llama-chat"], _request())
    asked = TEMPLATES.get("eor-retrieval-augmented-llama2-chat").render(QUESTION, PASSAGES)
    prompt = f"<|user|>{asked}</s><|assistant|>"
    assert answer.text == _plain_text(folders["llama-chat"], prompt, special=False)


def test_what_a_chat_template_makes_is_bounded(
    models: dict[str, LanguageEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_prompter, "MOST_CHARACTERS", 100)
    with pytest.raises(InvalidField, match="makes a prompt of more than 100 characters"):
        write(models["llama-chat"], _request())


@pytest.mark.parametrize(
    ("kind", "template"), [("t5", "question"), ("llama", "eor-retrieval-free-llama2-chat")]
)
def test_retrieval_free(
    models: dict[str, LanguageEngine], folders: dict[str, Path], kind: str, template: str
) -> None:
    answer, _ = write(models[kind], _request(passages=(), augmentation=Augmentation.RETRIEVAL_FREE))
    assert answer.text == _plain_text(folders[kind], TEMPLATES.get(template).render(QUESTION))


def test_a_template_by_name(models: dict[str, LanguageEngine], folders: dict[str, Path]) -> None:
    answer, _ = write(models["t5"], _request(template="rankrag-answer.v1"))
    assert answer.text == _plain_text(
        folders["t5"], TEMPLATES.get("rankrag-answer").render(QUESTION, PASSAGES)
    )


def test_a_template_from_the_settings(
    folders: dict[str, Path], model_of: Callable[..., LanguageEngine]
) -> None:
    answer, _ = write(model_of(folders["t5"], template="rankrag-answer"), _request())
    assert answer.text == _plain_text(
        folders["t5"], TEMPLATES.get("rankrag-answer").render(QUESTION, PASSAGES)
    )


@pytest.mark.parametrize("num_beams", [1, 4])
@pytest.mark.parametrize("kind", ["t5", "bart"])
def test_fusion_in_decoder_attends_to_separately_encoded_passages(
    models: dict[str, LanguageEngine], folders: dict[str, Path], kind: str, num_beams: int
) -> None:
    """The reference: passages encoded one by one, states joined, decoded by plain ``generate``."""
    request = _request(
        augmentation=Augmentation.FUSION_IN_DECODER, decoding=Decoding(num_beams=num_beams, max_new_tokens=12)
    )
    answer, _ = write(models[kind], request)
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


def test_fusion_in_decoder_does_not_know_the_order(models: dict[str, LanguageEngine]) -> None:
    """T5's cross-attention has no positions, so that permuted passages are the same passages."""
    request = _request(augmentation=Augmentation.FUSION_IN_DECODER)
    first, _ = write(models["t5"], request)
    second, _ = write(models["t5"], replace(request, passages=PASSAGES[::-1]))
    assert first.text == second.text
    assert first.log_probability == pytest.approx(second.log_probability, abs=1e-3)


def test_passages_that_do_not_fit_are_dropped_from_the_end(
    folders: dict[str, Path], model_of: Callable[..., LanguageEngine]
) -> None:
    model = model_of(folders["t5"])
    many = tuple(Passage(str(at), "", SENTENCES[at % 8]) for at in range(40))
    answer, _ = write(model, _request(passages=many))
    kept = len(many) - answer.dropped_passages
    assert 0 < kept < len(many)
    render = TEMPLATES.get("ra-x").render
    assert answer.text == _plain_text(folders["t5"], render(QUESTION, many[:kept]))
    _, tokenizer = plain(folders["t5"])
    assert answer.prompt_tokens == len(tokenizer(render(QUESTION, many[:kept])).input_ids) <= 512
    assert len(tokenizer(render(QUESTION, many[: kept + 1])).input_ids) > 512


def test_a_decoder_only_model_keeps_room_for_its_answer(
    folders: dict[str, Path], model_of: Callable[..., LanguageEngine]
) -> None:
    model = model_of(folders["llama"], max_input_tokens=400)
    many = tuple(Passage(str(at), "", SENTENCES[at % 8]) for at in range(40))
    short, _ = write(model, _request(passages=many, decoding=Decoding(max_new_tokens=10)))
    long, _ = write(model, _request(passages=many, decoding=Decoding(max_new_tokens=100)))
    assert short.prompt_tokens + 10 <= 400
    assert long.prompt_tokens + 100 <= 400
    assert long.dropped_passages > short.dropped_passages


def test_a_first_passage_too_long_is_cut_and_not_dropped(
    folders: dict[str, Path], model_of: Callable[..., LanguageEngine]
) -> None:
    model = model_of(folders["t5"])
    long = Passage("a", "", " ".join(SENTENCES * 10))
    answer, _ = write(model, _request(passages=(long, PASSAGES[0])))
    assert answer.dropped_passages == 1
    assert 500 <= answer.prompt_tokens <= 512


@pytest.mark.parametrize("augmentation", [Augmentation.IN_PROMPT, Augmentation.FUSION_IN_DECODER])
def test_a_question_too_long_is_an_error_and_never_cut(
    models: dict[str, LanguageEngine], augmentation: Augmentation
) -> None:
    question = " ".join(SENTENCES * 10)
    with pytest.raises(InvalidField, match=r"makes a prompt of \d+ tokens; tiny reads at most 512") as caught:
        write(models["t5"], _request(question=question, augmentation=augmentation))
    assert caught.value.field == "question"
    with pytest.raises(InvalidField, match="reads at most 512"):
        _judge(models["t5"], question, PASSAGES, Normalization.TRUE_FALSE)


def test_fusion_cuts_long_passages_each_for_itself(models: dict[str, LanguageEngine]) -> None:
    long = Passage("a", "", " ".join(SENTENCES * 10))
    answer, _ = write(
        models["t5"], _request(passages=(long, long), augmentation=Augmentation.FUSION_IN_DECODER)
    )
    assert answer.dropped_passages == 0
    assert 1000 <= answer.prompt_tokens <= 1024


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_answers_as_each_request_alone(models: dict[str, LanguageEngine], kind: str) -> None:
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
    outcomes = _batch(model, requests)
    assert len(outcomes) == len(requests)
    for at, (request, outcome) in enumerate(zip(requests, outcomes, strict=True)):
        if at == 5:
            assert isinstance(outcome, InvalidField)
            continue
        assert not isinstance(outcome, MeshError)
        alone, _ = write(model, request)
        assert replace(outcome, log_probability=0.0) == replace(alone, log_probability=0.0)
        assert outcome.log_probability == pytest.approx(alone.log_probability, abs=1e-3)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("normalization", list(Normalization))
def test_relevance_is_the_probability_of_true(
    models: dict[str, LanguageEngine], folders: dict[str, Path], kind: str, normalization: Normalization
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
    got = _judge(models[kind], QUESTION, PASSAGES, normalization)
    assert got == pytest.approx(expected, rel=1e-3, abs=1e-9)
    assert len({round(value, 12) for value in got}) == len(PASSAGES)


def test_relevance_does_not_depend_on_what_is_judged_beside(models: dict[str, LanguageEngine]) -> None:
    passages = [Passage(str(at), "", " ".join(SENTENCES[: 1 + at % 7])) for at in range(40)]
    together = _judge(models["t5"], QUESTION, passages, Normalization.TRUE_FALSE)
    backwards = _judge(models["t5"], QUESTION, passages[::-1], Normalization.TRUE_FALSE)
    assert backwards[::-1] == pytest.approx(together, rel=1e-4)
    for at in (0, 17, 39):
        (alone,) = _judge(models["t5"], QUESTION, passages[at : at + 1], Normalization.TRUE_FALSE)
        assert alone == pytest.approx(together[at], rel=1e-4)


def test_a_long_passage_is_judged_by_its_beginning(models: dict[str, LanguageEngine]) -> None:
    long = Passage("a", "", " ".join(SENTENCES * 10))
    longer = Passage("b", "", " ".join(SENTENCES * 20))
    first, second = _judge(models["t5"], QUESTION, [long, longer], Normalization.TRUE_FALSE)
    assert first == pytest.approx(second, rel=1e-4)


def test_a_tokenizer_that_does_not_tell_true_from_false(
    folders: dict[str, Path], model_of: Callable[..., LanguageEngine]
) -> None:
    model, tokenizer = load(folders["t5"], CPU)
    vocabulary = {"<pad>": 0, "</s>": 1, "<unk>": 2, "▁": 3}
    from tokenizers import Tokenizer, models

    tokenizer._tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))  # noqa: S106
    blind = transformers_engine("blind", "v", model, tokenizer, TEMPLATES, EngineOptions())
    assert not blind.describe().scores_relevance
    with pytest.raises(FailedPrecondition, match="does not distinguish True from False"):
        _judge(blind, QUESTION, PASSAGES)
    blind.close()


def test_descriptions(models: dict[str, LanguageEngine]) -> None:
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


def test_a_t5_reads_more_than_its_tokenizer_says_where_the_setting_does(
    folders: dict[str, Path], model_of: Callable[..., LanguageEngine]
) -> None:
    assert model_of(folders["t5"], max_input_tokens=2048).describe().max_input_tokens == 2048
    assert model_of(folders["bart"], max_input_tokens=2048).describe().max_input_tokens == 512


def test_instruction_by_setting(folders: dict[str, Path], model_of: Callable[..., LanguageEngine]) -> None:
    can = model_of(folders["t5"], instruction=True).describe().augmentations
    assert Augmentation.PARAMETRIC_KNOWLEDGE in can
    can = model_of(folders["llama-chat"], instruction=False).describe().augmentations
    assert Augmentation.PARAMETRIC_KNOWLEDGE not in can


def test_cancelled_before_it_began(models: dict[str, LanguageEngine]) -> None:
    cancel = Cancellation()
    cancel.cancel()
    with pytest.raises(Cancelled):
        models["t5"].judge(RelevanceRequest(QUESTION, PASSAGES), cancel).result()
    with pytest.raises(Cancelled):
        write(models["t5"], _request(), cancel)


def test_finish_reasons(models: dict[str, LanguageEngine]) -> None:
    answers = _batch(
        models["t5"],
        [
            GenerationRequest(
                text, augmentation=Augmentation.RETRIEVAL_FREE, decoding=Decoding(max_new_tokens=16)
            )
            for text in SENTENCES
        ],
    )
    reasons = {answer.finish_reason for answer in answers if isinstance(answer, Answer)}
    assert reasons == {FinishReason.STOP, FinishReason.LENGTH}


def test_judgements_of_many_callers_share_batches(
    folders: dict[str, Path], model_of: Callable[..., LanguageEngine]
) -> None:
    """Eight callers of five passages: fewer passes than one by one, and the same scores."""
    model = model_of(folders["t5"], cache_bytes=0)
    passages = [Passage(str(at), "", text) for at, text in enumerate(SENTENCES[:5])]
    alone = [_judge(model, question, passages) for question in SENTENCES]
    before = model.statistics().judge_batches
    write(model, _request())  # the loop is warm
    with ThreadPoolExecutor(8) as pool:
        busy = submit(model, _request(decoding=Decoding(max_new_tokens=60, temperature=4.0)))
        together = list(pool.map(lambda question: _judge(model, question, passages), SENTENCES))
        busy.outcome()
    for one, other in zip(alone, together, strict=True):
        assert one == pytest.approx(other, rel=1e-3)
    statistics = model.statistics()
    assert statistics.judged == 2 * 8 * 5
    assert statistics.judge_batches - before < before


def test_judging_by_another_template(models: dict[str, LanguageEngine]) -> None:
    usual = _judge(models["t5"], QUESTION, PASSAGES)
    assert _judge(models["t5"], QUESTION, PASSAGES, template=RANKING_TEMPLATE) == pytest.approx(
        usual, rel=1e-4
    )
    assert _judge(models["t5"], QUESTION, PASSAGES, template="fusion-in-decoder") != pytest.approx(
        usual, rel=1e-2
    )
    with pytest.raises(InvalidField, match="a judgement needs one passage") as caught:
        _judge(models["t5"], QUESTION, PASSAGES, template="ra-x")
    assert caught.value.field == "template"
    with pytest.raises(NotFound):
        _judge(models["t5"], QUESTION, PASSAGES, template="no-such")


CONVERSATION = TemplateLibrary(
    {
        "chat.v1.txt": "{% for turn in turns %}{{ turn.question }} {{ turn.answer }} {% endfor %}"
        "{{ question }}{% for document in documents %} {{ document }}{% endfor %}",
        "chat-one.v1.txt": "{% for turn in turns %}{{ turn.question }} {{ turn.answer }} {% endfor %}"
        "{{ question }} {{ document }}",
        "fusion-in-decoder.v1.txt": "{{ question }} {{ document }}",
        "question.v1.txt": "{{ question }}",
        "rankrag-context-ranking.v1.txt": "{{ question }} {{ document }}",
    }
)
TURNS = tuple(Turn(SENTENCES[at % 8], SENTENCES[(at + 1) % 8]) for at in range(40))


def _prompter(folder: Path, most_input: int = 200) -> TextPrompter:
    _, tokenizer = load(folder, CPU)
    return TextPrompter(
        "tiny", tokenizer, CONVERSATION, encodes=True, start=0, template="chat", most_input=most_input
    )


def test_the_oldest_turns_go_first_then_passages_then_the_end_of_the_only_one(
    folders: dict[str, Path],
) -> None:
    prompter = _prompter(folders["t5"])
    prompt = prompter.prompt(_request(turns=TURNS))
    assert 0 < prompt.dropped_turns < len(TURNS)
    assert (prompt.dropped_passages, prompt.cut_passages) == (0, 0)
    assert prompt.tokens <= 200
    text = CONVERSATION.get("chat").render(QUESTION, PASSAGES, TURNS[prompt.dropped_turns :])
    assert prompt.rows[0] == prompter.tokens(text)
    longer = CONVERSATION.get("chat").render(QUESTION, PASSAGES, TURNS[prompt.dropped_turns - 1 :])
    assert len(prompter.tokens(longer)) > 200

    many = tuple(Passage(str(at), "", SENTENCES[at % 8]) for at in range(40))
    prompt = prompter.prompt(_request(turns=TURNS, passages=many))
    assert prompt.dropped_turns == len(TURNS)
    assert 0 < prompt.dropped_passages < len(many)
    assert prompt.cut_passages == 0

    long = Passage("a", "", " ".join(SENTENCES * 10))
    prompt = prompter.prompt(_request(turns=TURNS, passages=(long, PASSAGES[0])))
    assert (prompt.dropped_turns, prompt.dropped_passages, prompt.cut_passages) == (len(TURNS), 1, 1)
    assert 180 <= prompt.tokens <= 200


def test_fusion_drops_turns_until_every_row_fits(folders: dict[str, Path]) -> None:
    prompter = _prompter(folders["t5"])
    long = Passage("a", "", " ".join(SENTENCES))
    prompt = prompter.prompt(
        _request(
            turns=TURNS,
            passages=(PASSAGES[0], long),
            augmentation=Augmentation.FUSION_IN_DECODER,
            template="chat-one",
        )
    )
    assert 0 < prompt.dropped_turns < len(TURNS)
    assert (prompt.cut_passages, prompt.dropped_passages) == (0, 0)
    assert max(map(len, prompt.rows)) <= 200
    assert len(prompt.rows[0]) < len(prompt.rows[1])


def test_turns_that_a_default_template_does_not_show_are_counted(folders: dict[str, Path]) -> None:
    prompter = _prompter(folders["t5"])
    fused = _request(augmentation=Augmentation.FUSION_IN_DECODER)
    prompt = prompter.prompt(replace(fused, turns=TURNS))
    assert prompt.dropped_turns == len(TURNS)
    assert prompt.rows == prompter.prompt(fused).rows


def test_turns_that_a_named_template_does_not_show_are_refused(folders: dict[str, Path]) -> None:
    fused = _request(augmentation=Augmentation.FUSION_IN_DECODER, template="fusion-in-decoder", turns=TURNS)
    with pytest.raises(InvalidField, match="no place for earlier turns") as caught:
        _prompter(folders["t5"]).prompt(fused)
    assert caught.value.field == "turns"


def test_a_judgement_that_is_no_number_is_none(folders: dict[str, Path]) -> None:
    model: Any
    model, tokenizer = load(folders["t5"], CPU)
    engine = transformers_engine("m", "v", model, tokenizer, TEMPLATES, EngineOptions())
    passages = [Passage("0", "", SENTENCES[0])]
    model.lm_head.weight.data.fill_(torch.nan)
    with pytest.raises(FailedPrecondition, match="no numbers") as caught:
        _judge(engine, QUESTION, passages)
    assert caught.value.reason == "NO_NUMBERS"
    engine.close()


def test_a_batch_whose_scores_are_no_numbers_runs_no_model_continuously(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, _ = load(folders["llama"], CPU)
    model.set_attn_implementation(ATTENTION)
    network = CausalNetwork(model, pad=0, batch_tokens=64, cache_bytes=0)
    assert supports_continuous_batching(network, model, None)
    step = CausalRows.step
    monkeypatch.setattr(CausalRows, "step", lambda *given: step(*given) * torch.nan)
    assert not supports_continuous_batching(network, model, None)


def test_what_prompts_begin_with_is_read_once_to_judge(
    folders: dict[str, Path], model_of: Callable[..., LanguageEngine]
) -> None:
    """A decoder-only model reads the paper's system text once, whatever the question, in blocks of tokens."""
    passages = [Passage(str(at), "", text) for at, text in enumerate(SENTENCES)]
    alone = _judge(model_of(folders["llama"], cache_bytes=0), QUESTION, passages)
    model = model_of(folders["llama"])
    _, tokenizer = plain(folders["llama"])
    template = TEMPLATES.get(RANKING_TEMPLATE)
    prompts = [tokenizer(template.render(QUESTION, [one])).input_ids for one in passages]
    pairs = [list(zip(prompts[0], one, strict=False)) for one in prompts[1:]]
    shared = min(next(at for at, (one, other) in enumerate(pair) if one != other) for pair in pairs)
    assert _judge(model, QUESTION, passages) == pytest.approx(alone, rel=1e-3)
    found = model.statistics()
    assert found.computed_tokens + found.reused_tokens >= sum(map(len, prompts))
    assert found.reused_tokens >= (len(passages) - 1) * (shared // BLOCK) * BLOCK > 0


def test_prompts_that_wait_hold_no_copy_of_what_they_begin_with(folders: dict[str, Path]) -> None:
    """A thousand passages of one call begin alike, and are read a few at a time."""
    model, _ = load(folders["llama"], CPU)
    network = CausalNetwork(model, pad=0, batch_tokens=8192, cache_bytes=2**24)
    prompts = [Prompt(((*range(5, 5 + 2 * BLOCK), 5 + at),)) for at in range(40)]
    prefills = [network.prefill(one) for one in prompts]
    with torch.inference_mode():
        while waiting := [one for one in prefills if not one.done]:
            network.advance(waiting, 8192)
            assert all(one.kept is None for one in waiting if not one.done)
    assert [one.reused for one in prefills] == [0] + [2 * BLOCK] * 39
    _, hits, misses = network.counts()
    assert (hits, misses) == (39, 40), "each block of a prompt counts once"


def test_judging_pads_little_whoever_asks(folders: dict[str, Path]) -> None:
    """Passages of two lengths, in turn, of two callers: those of one length are read together."""
    model, tokenizer = load(folders["llama"], CPU)
    engine = transformers_engine("m", "v", model, tokenizer, TEMPLATES, EngineOptions(cache_bytes=0))
    read: list[int] = []
    model.register_forward_pre_hook(
        lambda _, __, given: read.append(given["input_ids"].numel()), with_kwargs=True
    )
    texts = [SENTENCES[1], " ".join(SENTENCES[:6])]
    passages = [Passage(str(at), "", texts[at % 2]) for at in range(32)]
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda _: _judge(engine, QUESTION, passages), range(2))
    computed = engine.statistics().computed_tokens
    engine.close()
    assert first == pytest.approx(second, rel=1e-3)
    assert computed > 0
    assert sum(read) == computed
