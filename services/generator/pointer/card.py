"""The model card: what the model is, written from what was measured."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

EVALUATION = "evaluation.json"
TRAINING = "training.json"
CARD = "MODEL_CARD.md"


@dataclass(frozen=True)
class Measure:
    """A mean over ``questions`` questions with its bootstrap 95 % interval [low, high]; all in [0, 1]."""

    name: str
    value: float
    low: float
    high: float
    questions: int


@dataclass(frozen=True)
class Evaluation:
    """All measures of one model, and how they were taken."""

    weights_sha256: str
    precision: str
    seed: int
    passages: int
    seconds: float
    measures: tuple[Measure, ...]


@dataclass(frozen=True)
class Training:
    """How a model was trained.

    ``steps`` done of ``planned``; ``seconds`` spent in steps; ``questions`` in the training set;
    ``recipe`` its settings by name; ``hardware`` and ``software`` in words.
    """

    steps: int
    planned: int
    seconds: float
    questions: int
    recipe: dict[str, Any]
    hardware: str
    software: str


def write(folder: Path) -> None:
    """Write the card of the model in ``folder`` from its ``training.json`` and ``evaluation.json``.

    Raises:
        ValueError: the evaluation is of other weights than those in ``folder``.
    """
    training = Training(**json.loads((folder / TRAINING).read_text(encoding="utf-8")))
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    path = folder / EVALUATION
    evaluation = None
    if path.is_file():
        stored = json.loads(path.read_text(encoding="utf-8"))
        stored["measures"] = tuple(Measure(**m) for m in stored["measures"])
        evaluation = Evaluation(**stored)
        if evaluation.weights_sha256 != config["weights_sha256"]:
            raise ValueError(f"{path} measures other weights than those beside it; run the evaluation again")
    megabytes = (folder / "model.safetensors").stat().st_size / 1e6
    text = render(training, evaluation, megabytes=megabytes, config=config)
    (folder / CARD).write_text(text, encoding="utf-8")


def render(
    training: Training, evaluation: Evaluation | None, *, megabytes: float, config: dict[str, Any]
) -> str:
    """The card's Markdown."""
    recipe = training.recipe
    settings = {name: value for name, value in recipe.items() if name != "stages"}
    share = training.steps * recipe["batch_size"] / training.questions
    sections = [
        _WHAT.format(
            megabytes=megabytes,
            encoder=config["encoder_layers"],
            decoder=config["decoder_layers"],
            frozen=config["frozen_layers"],
            base=config["base_package"],
            sha=config["base_sha256"],
        ),
        _measured(evaluation),
        _TRAINED.format(
            steps=training.steps,
            planned=training.planned,
            share=share,
            hours=training.seconds / 3600,
            each=training.seconds / max(1, training.steps),
            questions=training.questions,
            hardware=training.hardware,
            software=training.software,
            settings="\n".join(f"| {name.replace('_', ' ')} | {value} |" for name, value in settings.items()),
            stages="\n".join(_stage(stage) for stage in recipe["stages"]),
            fused=100 * recipe["fused_rate"],
        ),
        _LIMITS,
    ]
    return "\n".join(sections)


def _stage(stage: dict[str, Any]) -> str:
    size = stage["size"]
    return f"| from step {stage['start']:,} | {size['limit']} | {100 * size['negative_rate']:.0f} % |"


def _measured(evaluation: Evaluation | None) -> str:
    if evaluation is None:
        return "## Measured\n\nNot yet: run `python -m services.generator.pointer.evaluate`.\n"
    rows = "\n".join(
        f"| {m.name} | {100 * m.value:.1f} | {100 * m.low:.1f} to {100 * m.high:.1f} | {m.questions:,} |"
        for m in evaluation.measures
    )
    return _MEASURED.format(
        rows=rows, precision=evaluation.precision, seed=evaluation.seed, n=evaluation.passages
    )


_WHAT = """# Model card: ragmesh pointer

Answers a question from passages, in the passages' words, and judges whether a passage answers a question.
It is small enough to ship ({megabytes:.1f} MB here) and to run on a laptop's processor, so that ragmesh
answers out of the box; it is no match for a large language model.

- **Shape:** encoder of {encoder} layers × 384, decoder of {decoder} layers, pointer (copy) head: the
  output is (1 − g) · softmax over the vocabulary + g · attention over the source tokens (See et al.,
  2017). Several passages are read as in Fusion-in-Decoder (Izacard and Grave, 2021). The decoder's start
  token names the task, as in RankRAG one model ranks and answers (Yu et al., 2024).
- **Files:** `model.safetensors` holds the trained tensors in bfloat16. The word, position and type
  embeddings, the lowest {frozen} encoder layers and the tokenizer are those of the package `{base}`
  (sentence-transformers/all-MiniLM-L6-v2, Apache-2.0), read from there; weights with another SHA-256 than
  `{sha}` are refused.
- **Licence:** Apache-2.0, as the rest of ragmesh. Trained on SQuAD 1.1 (Rajpurkar et al., 2016), which is
  CC BY-SA 4.0, as is the Wikipedia text in it; no text of it ships with the model.
"""

_MEASURED = """## Measured

On the dev questions of SQuAD 1.1 as an open-domain corpus ({n:,} passages, none of their articles in
training). Means in percent with bootstrap 95 % intervals over the questions. Retrieved: the best 20
passages of BM25 for the question, ranked by the model's P(true) or left in BM25's order, the best 5 read
together. Answers are greedy unless the row says otherwise; {precision}; questions drawn with seed {seed}.

| measure | % | 95 % interval | questions |
|---|---|---|---|
{rows}
"""

_TRAINED = """## Trained

{steps:,} of {planned:,} planned steps, {share:.2f} epochs of {questions:,} SQuAD training questions, in
{hours:.2f} hours ({each:.2f} s a step, other jobs on the same cores included) on {hardware};
{software}.

Every question is used once per epoch with its gold passage; some also get a negative, the passage of the
same article, of a sample without the answer, that shares most with the question. Of those, {fused:.0f} %
decode the answer from both passages. Every pair is also a relevance example. Pairs that are too long are
cut to a window that holds the answer. Loss: mean negative log-likelihood of the answer's tokens + 0.5 × that
of the verdict, true and false weighing the same. AdamW, linear warm-up and decay, no dropout, bfloat16
autocast. The later stages are smaller to end in time, not because it was found better.

| stage | tokens of a pair | with a negative |
|---|---|---|
{stages}

| setting | value |
|---|---|
{settings}

Again: `python -m services.generator.pointer.train`, then `python -m services.generator.pointer.export`
and `python -m services.generator.pointer.evaluate`.
"""

_LIMITS = """## Limits

- Short answers taken from the passages; it does not explain, count, compare or combine.
- English only; it reads lower case, and gets the case of its answer back from the passage.
- It always answers, right or wrong: it was never shown a question without an answer. A low P(true) of all
  passages is the sign to look at.
- Better recall by its ranking need not mean better answers: a passage it ranks high can also mislead it.
  Compare the rows above before relying on it as a reranker.
- Trained on Wikipedia paragraphs and on questions written by people who saw the paragraph; expect less
  elsewhere.
- A question is cut at 64 tokens, question and passage together at 256.
- What is wrong or one-sided in the passages is so in the answers.
"""
