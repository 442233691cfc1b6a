"""Write an example as text: the prompts of RankRAG's stages I and II (Yu et al., 2024, appendix C).

The paper says that instructions are tailored to the kind of data but not where they stand; as in its
authors' earlier ChatQA, they come before the user's first words. For claims it gives only the prompt of
evaluation (appendix D.2), used here too.
"""

from importlib import resources
from typing import Final, Self

from evenmesh_generator.domain import Turn
from evenmesh_generator.prompts import Template, TemplateLibrary
from evenmesh_training.rankrag.data.examples import Example, Form, Kind

_INSTRUCTION: Final = {
    Form.SHORT: "Answer the following question with a short span.",
    Form.LONG: "Please give a full and complete answer for the question.",
    Form.ARITHMETIC: (
        "Answer the following question with a number from the context or through math arithmetic."
    ),
    Form.SHORT_OR_LONG: "Answer the following question with a short span, or a full and complete answer.",
}
_CLAIM: Final = "Answer the following question with True or False. Is the claim ’{}’ correct?"


class PromptWriter:
    """Writes the prompt of an example; what follows it is the example's target."""

    def __init__(self, training: TemplateLibrary, serving: TemplateLibrary) -> None:
        self._by_kind: dict[Kind, Template] = {
            Kind.SFT: training.get("rankrag-sft"),
            Kind.CONTEXT_RICH_QA: training.get("rankrag-context-rich"),
            Kind.RETRIEVAL_AUGMENTED_QA: training.get("rankrag-retrieval-augmented"),
            Kind.RETRIEVAL_AUGMENTED_RANKING: training.get("rankrag-passage-ids"),
        }
        # context ranking is the same prompt when the model is trained and when it ranks
        self._ranking = serving.get("rankrag-context-ranking")
        self._ranking_claim = serving.get("rankrag-context-ranking-claim")
        self._ranking_conversation = serving.get("rankrag-context-ranking-conversation")

    @classmethod
    def bundled(cls) -> Self:
        """Return a writer with the templates that ship."""
        folder = resources.files("evenmesh_training.rankrag") / "templates"
        texts = {f.name: f.read_text(encoding="utf-8") for f in folder.iterdir() if f.name.endswith(".txt")}
        return cls(TemplateLibrary(texts), TemplateLibrary.bundled())

    def write(self, example: Example) -> str:
        """Return the prompt, up to and with ``Assistant:``."""
        passages = [one.passage for one in example.shown]
        turns = list(example.turns)
        question = example.question
        if example.kind.reads:
            if example.form is Form.CLAIM:
                question = _CLAIM.format(question)
            elif turns:
                turns[0] = Turn(f"{_INSTRUCTION[example.form]} {turns[0].question}", turns[0].answer)
            else:
                question = f"{_INSTRUCTION[example.form]} {question}"
        return self._template(example).render(question, passages, turns)

    def _template(self, example: Example) -> Template:
        if example.kind is not Kind.CONTEXT_RANKING:
            return self._by_kind[example.kind]
        if example.form is Form.CLAIM:
            return self._ranking_claim
        return self._ranking_conversation if example.turns else self._ranking
