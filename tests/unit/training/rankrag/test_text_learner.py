"""Training language models of transformers: tokens, losses, LoRA, and what is refused."""

from pathlib import Path

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer

from evenmesh_generator.domain import Passage, Turn
from evenmesh_training.rankrag.data.examples import Example, Form, Kind, Shown
from evenmesh_training.rankrag.learners.text_learner import TextLearner, positions
from evenmesh_training.rankrag.recipe import RecipeError, Stage
from tests.support import tiny_models

STAGE = Stage(steps=1, max_length=900, max_target=20, bf16=False)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = {"t5": tiny_models.t5, "bart": tiny_models.bart, "llama": tiny_models.llama}
    return {kind: make(tmp_path_factory.mktemp(kind)) for kind, make in made.items()}


def example(kind: Kind = Kind.CONTEXT_RICH_QA, *, text: str = "water boils", turns: int = 0) -> Example:
    shown = (Shown(Passage("p", "", text), gold=True, holds=True),)
    talk = tuple(Turn(f"What is {n}?", "oil on the chain") for n in range(turns))
    return Example(kind, "s", "i", "What boils?", talk, shown, "water", ("water",), Form.SHORT)


def load(folders: dict[str, Path], kind: str, stage: Stage = STAGE) -> TextLearner:
    # BART's tiny model has 512 positions, as T5's tokenizer says of its own
    longest = 512 if kind == "bart" else stage.max_length
    return TextLearner.load(str(folders[kind]), stage.model_copy(update={"max_length": longest}))


@pytest.mark.parametrize("kind", ["t5", "llama"])
def test_the_loss_is_the_mean_over_examples_of_a_target_tokens(folders: dict[str, Path], kind: str) -> None:
    learner = load(folders, kind)
    made = [example(), example(Kind.CONTEXT_RANKING, text="a fox"), example(text="water boils at sea level")]
    with torch.no_grad():
        together = float(learner.module(learner.collate(made))["loss"])
        alone = [float(learner.module(learner.collate([one]))["loss"]) for one in made]
        by_hand = []
        model = (AutoModelForSeq2SeqLM if kind == "t5" else AutoModelForCausalLM).from_pretrained(
            folders[kind]
        )
        for one in made:
            batch = learner.collate([one])
            output = model(input_ids=batch.input_ids, labels=batch.labels)
            by_hand.append(float(output.loss))
    assert alone == pytest.approx(by_hand, rel=1e-4)
    assert together == pytest.approx(sum(alone) / 3, rel=1e-4)


def test_a_decoder_learns_the_last_answer_alone(folders: dict[str, Path]) -> None:
    learner = load(folders, "llama")
    tokenizer = AutoTokenizer.from_pretrained(folders["llama"])
    batch = learner.collate([example(turns=2)])
    known = batch.labels[0] != -100
    assert tokenizer.decode(batch.labels[0][known]) == " water</s>"
    assert torch.equal(batch.labels[0][known], batch.input_ids[0][known])
    read = tokenizer.decode(batch.input_ids[0][~known])
    assert read.endswith("User: What boils?\nAssistant:")
    assert read.count("oil on the chain") == 2


@pytest.mark.parametrize("kind", ["t5", "llama"])
def test_the_verdict_is_the_probability_of_its_token(folders: dict[str, Path], kind: str) -> None:
    learner = load(folders, kind)
    (judged,) = learner.predict([example(Kind.CONTEXT_RANKING)])
    # the same from the losses of the two targets: they differ in the token of the verdict only up to its end
    assert judged.probability is not None
    assert 0 < judged.probability < 1
    tokens = [learner._target("Assistant:", word) for word in ("True", "False")]
    place = next(at for at, (a, b) in enumerate(zip(*tokens, strict=True)) if a != b)
    with torch.no_grad():
        batch = learner.collate([example(Kind.CONTEXT_RANKING)])
        if kind == "llama":
            at = int((batch.labels[0] != -100).nonzero()[0]) + place
            logits = learner.module.model(input_ids=batch.input_ids[:, :at]).logits[0, -1]
        else:
            logits = learner.module.model(input_ids=batch.input_ids, labels=batch.labels).logits[0, place]
    pair = logits[[tokens[0][place], tokens[1][place]]].softmax(0)
    assert judged.probability == pytest.approx(float(pair[0]), abs=1e-5)


def test_what_does_not_fit_loses_turns_then_passage(folders: dict[str, Path]) -> None:
    learner = load(folders, "llama", STAGE.model_copy(update={"max_length": 260}))
    tokenizer = AutoTokenizer.from_pretrained(folders["llama"])

    def read(one: Example) -> str:
        prompt, target = learner._tokens(one)
        assert len(prompt) + len(target) <= 260
        return str(tokenizer.decode(prompt))

    free = learner._tokens(example())[0]
    assert len(free) < 260  # so that what follows is cut by what it has more
    talk = read(example(turns=30))
    assert "User: What is 29?" in talk
    assert "What is 0?" not in talk
    assert "Passage: water boils" in talk
    long = read(example(text="water boils " * 300))
    assert "Passage: water boils" in long
    assert long.endswith("User: Answer the following question with a short span. What boils?\nAssistant:")


def test_a_question_that_cannot_fit_is_refused_beforehand(folders: dict[str, Path]) -> None:
    learner = load(folders, "llama", STAGE.model_copy(update={"max_length": 40}))
    with pytest.raises(RecipeError, match="raise max_length"):
        learner.check([example()])


def test_lora_trains_adapters_alone_and_saves_a_merged_model(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    stage = STAGE.model_copy(update={"lora": True, "lora_rank": 2})
    learner = load(folders, "llama", stage)
    trained = {name for name, p in learner.module.named_parameters() if p.requires_grad}
    assert trained
    assert all("lora_" in name for name in trained)
    with torch.no_grad():
        for name, parameter in learner.module.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.3)
        learner.module.eval()
        batch = learner.collate([example()])
        expected = learner.module(batch)["loss"]
        plain = load(folders, "llama").module(batch)["loss"]
    learner.save(tmp_path)
    with torch.no_grad():
        again = TextLearner.load(str(tmp_path), STAGE)
        assert not isinstance(again.module.model, PeftModel)
        assert float(again.module(batch)["loss"]) == pytest.approx(float(expected), rel=1e-4)
        # saving left the adapters apart
        assert float(learner.module(batch)["loss"]) == pytest.approx(float(expected), rel=1e-4)
    assert float(plain) != pytest.approx(float(expected), rel=1e-3)
    assert (tmp_path / "adapter" / "adapter_config.json").is_file()


def test_a_tokenizer_that_splits_true_is_refused(folders: dict[str, Path]) -> None:
    # the tiny BART knows "True" behind a space alone, and its targets begin without one
    with pytest.raises(RecipeError, match="does not have True and False as single tokens"):
        load(folders, "bart")


def test_a_context_longer_than_the_model_is_refused(folders: dict[str, Path]) -> None:
    with pytest.raises(RecipeError, match=r"max_length 2000 is more than the 1024 tokens"):
        TextLearner.load(str(folders["llama"]), STAGE.model_copy(update={"max_length": 2000}))


def test_relative_positions_have_no_end(folders: dict[str, Path]) -> None:
    learner = load(folders, "t5")
    assert positions(learner.module.model.config, AutoTokenizer.from_pretrained(folders["t5"])) is None


def test_a_model_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="cannot be loaded"):
        TextLearner.load(str(tmp_path / "nowhere"), STAGE)
