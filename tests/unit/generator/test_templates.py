"""Every bundled template to the letter of its paper: the prompt as printed, its places filled in, is what it renders.

The papers' own pages lie beside the repository, in ``../shared/papers``; where they do, each quotation is looked up
in its paper, so that a slip in copying shows. Line breaks of the page layout and the dots of ". . ." aside, nothing
is changed. LaMP's table is not among the papers there; docs/guides/prompts.md says where it comes from.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path

import pytest

from evenmesh_generator.domain import Passage, Turn
from evenmesh_generator.prompts import Scope, TemplateLibrary

SHARED = Path(os.environ.get("EVENMESH_SHARED_DATA", Path(__file__).parents[4] / "shared" / "data")).parent
PAPERS = SHARED / "papers"
QUESTION = "who wrote Hamlet?"
PASSAGES = (
    Passage("a", "Hamlet", "A play by William Shakespeare."),
    Passage("b", "", "Written about {1600}; {{ not a template }}."),
)
FIRST, SECOND = "Hamlet A play by William Shakespeare.", "Written about {1600}; {{ not a template }}."
TURNS = (Turn("what is Hamlet?", "a play"), Turn("where is it set?", "in Denmark"))
TALK = "User: what is Hamlet?\nAssistant: a play\nUser: where is it set?\nAssistant: in Denmark\n"
SYSTEM = (
    "System: This is a chat between a user and an artificial intelligence assistant. The assistant gives helpful, "
    "detailed, and polite answers to the user’s questions based on the context. The assistant should also indicate "
    "when the answer cannot be found in the context.\n"
)
TOP_FIVE = "".join(f"Passage {rank}: {{Rerank Top Passage {rank}}}\n" for rank in range(1, 6))
SHUFFLED_FIVE = "".join(f"Passage {rank}: {{(Shuffled) Passage {rank}}}\n" for rank in range(1, 6))
TWO_PASSAGES = f"Passage 1: {FIRST}\nPassage 2: {SECOND}\n"


@dataclass(frozen=True)
class Printed:
    """A prompt as a paper prints it.

    ``fills``: what stands in the prompt for what is printed, in the order in which it is replaced.
    """

    template: str
    paper: str
    place: str
    text: str
    fills: dict[str, str]
    passages: tuple[Passage, ...] = ()
    turns: tuple[Turn, ...] = ()
    scope: Scope = field(default=Scope.ALL_PASSAGES)

    def filled(self) -> str:
        prompt = self.text
        for printed, filled in self.fills.items():
            assert prompt.count(printed) == 1, printed
            prompt = prompt.replace(printed, filled)
        return prompt


def _rankrag(template: str, place: str, text: str, fills: dict[str, str], **rest: object) -> Printed:
    return Printed(f"rankrag-{template}", "rankrag", place, SYSTEM + text, fills, **rest)  # type: ignore[arg-type]


def _eor(template: str, place: str, text: str, fills: dict[str, str], **rest: object) -> Printed:
    return Printed(f"eor-{template}", "ensemble-of-retrievers", f"C.2, {place}", text, fills, **rest)  # type: ignore[arg-type]


PRINTED = [
    # In D.1 and C.2 the user's words are printed as one placeholder, "{For the question … }"; the braces are the
    # page's, and so is the space before the closing one.
    _rankrag(
        "context-ranking",
        "D.1, NQ/TriviaQA/HotpotQA/PopQA",
        "Passage: {Passage}\n"
        "User: {For the question <question>, access whether the passage is relevant to the question. "
        "Return True if relevant, otherwise False. }\n"
        "Assistant:",
        {"{Passage}": FIRST, "{For": "For", "<question>": QUESTION, ". }": "."},
        passages=PASSAGES[:1],
        scope=Scope.ONE_PASSAGE,
    ),
    _rankrag(
        "context-ranking-claim",
        "D.1, FEVER",
        "Passage: {Passage}\n"
        "User: {For the claim <claim>, access whether the passage is relevant to the claim. "
        "Return True if relevant, otherwise False. }\n"
        "Assistant:",
        {"{Passage}": FIRST, "{For": "For", "<claim>": QUESTION, ". }": "."},
        passages=PASSAGES[:1],
        scope=Scope.ONE_PASSAGE,
    ),
    _rankrag(
        "context-ranking-conversation",
        "D.1, Doc2dial, Inscit, TopiocQA",
        "Passage: {Passage}\n"
        "User: {Question 1}\n"
        "Assistant: {Answer 1}\n"
        "...\n"
        "User: {For the question <latest question>, access whether the passage is relevant to the question. "
        "Return True if relevant, otherwise False. }\n"
        "Assistant:",
        {
            "{Passage}": FIRST,
            "User: {Question 1}\nAssistant: {Answer 1}\n...\n": TALK,
            "{For": "For",
            "<latest question>": QUESTION,
            ". }": ".",
        },
        passages=PASSAGES[:1],
        turns=TURNS,
        scope=Scope.ONE_PASSAGE,
    ),
    _rankrag(
        "answer",
        "D.2, NQ/TriviaQA/HotpotQA/PopQA",
        TOP_FIVE + "...\nUser: {Question}. Answer the above question with a short phrase.\nAssistant:",
        {f"{TOP_FIVE}...\n": TWO_PASSAGES, "{Question}": QUESTION},
        passages=PASSAGES,
    ),
    _rankrag(
        "answer-claim",
        "D.2, Fever",
        TOP_FIVE + "...\n"
        "User: Answer the following question with True or False. Is the claim ’<claim>’ correct?\n"
        "Assistant:",
        {f"{TOP_FIVE}...\n": TWO_PASSAGES, "<claim>": QUESTION},
        passages=PASSAGES,
    ),
    _rankrag(
        "answer-conversation",
        "D.2, Doc2dial, Inscit, TopiOCQA",
        TOP_FIVE + "User: {Question 1}\nAssistant: {Answer 1}\n...\nUser: {Latest Question}\nAssistant:",
        {
            TOP_FIVE: TWO_PASSAGES,
            "User: {Question 1}\nAssistant: {Answer 1}\n...\n": TALK,
            "{Latest Question}": QUESTION,
        },
        passages=PASSAGES,
        turns=TURNS,
    ),
    _rankrag(
        "answer-conversation",
        "C.2, 2) Retrieval-augmented QA data",
        SHUFFLED_FIVE + "...\nUser: {Question}\nAssistant:",
        {f"{SHUFFLED_FIVE}...\n": TWO_PASSAGES, "{Question}": QUESTION},
        passages=PASSAGES,
    ),
    _rankrag(
        "passage-indexes",
        "C.2, 4) Retrieval-augmented ranking data",
        SHUFFLED_FIVE
        + "User: {For the question <question>, access whether the above passages are relevant to the question. "
        "Return all the relevant passage id. }\n"
        "Assistant:",
        {SHUFFLED_FIVE: TWO_PASSAGES, "{For": "For", "<question>": QUESTION, ". }": "."},
        passages=PASSAGES,
    ),
    _rankrag(
        "chat",
        "C.1",
        "User: {Question 1}\nAssistant: {Answer 1}\n...\nUser: {Latest Question}\nAssistant:",
        {"User: {Question 1}\nAssistant: {Answer 1}\n...\n": TALK, "{Latest Question}": QUESTION},
        turns=TURNS,
        scope=Scope.NO_PASSAGE,
    ),
    _eor(
        "parametric-knowledge",
        "Parametric Knowledge (PK)",
        "Generate a background document to answer the given question.\n{query}.",
        {"{query}": QUESTION},
        scope=Scope.NO_PASSAGE,
    ),
    _eor(
        "compression",
        "Compression (@CP)",
        "Please truthfully summarize the document below, the summary should contain the most important information "
        "relevant to answer the query and be within 200 words:\n"
        "query: {query}\n\ndocument: {document}\n\nsummary:",
        {"{query}": QUESTION, "{document}": f"{FIRST}\n{SECOND}"},
        passages=PASSAGES,
    ),
    *(
        printed
        for model, length in (("chatgpt", "within 15 words"), ("llama2-chat", "with one or few words"))
        for printed in (
            _eor(
                f"retrieval-free-{model}",
                f"Retrieval-free Generation, {model}",
                f"Please directly answer the following question {length}:\n{{query}}",
                {"{query}": QUESTION},
                scope=Scope.NO_PASSAGE,
            ),
            _eor(
                f"retrieval-augmented-{model}",
                f"Retrieval-Augmented Generation, {model}",
                "Assuming the following paragraphs are true:\n\n{document}\n\n"
                f"Please directly answer the following question {length}:\n{{query}}",
                {"{document}": f"{FIRST}\n{SECOND}", "{query}": QUESTION},
                passages=PASSAGES,
            ),
        )
    ),
    Printed(
        "ra-x",
        "iterative-utility-maximization",
        "5.1, RA-X",
        "{input} context 1: {doc1} . . . context k: {dock}",
        {"{input}": QUESTION, "{doc1} . . . context k: {dock}": f"{FIRST} context 2: {SECOND}"},
        passages=PASSAGES,
    ),
]

LAMP = {
    # Profile entry (PPEP), what stands after the entries, [INPUT] being the task's input (AIP), and which field of
    # the entry a passage has as title and as text.
    "lamp-2": ('the tag for the movie: "P[description]" is "P[tag]"', ". [INPUT]", "tag", "description"),
    "lamp-3": ('P[score] is the score for "P[text]"', ". [INPUT]", "score", "text"),
    "lamp-4": ('"P[title]" is the title for "P[text]"', ". [INPUT]", "title", "text"),
    "lamp-5": (
        '"P[title]" is the title for "P[abstract]"',
        ". Following the given patterns [INPUT]",
        "title",
        "abstract",
    ),
    "lamp-6": ('"P[title]" is the title for "P[text]"', ". [INPUT]", "title", "text"),
    "lamp-7": (
        '"P[text]"',
        " are written by a person. Following the given patterns [INPUT]",
        "-",
        "text",
    ),
}
CITATION = (
    'For an author who has written the paper with the title "Fair ranking", which reference is related? '
    'Just answer with [1] or [2] without explanation. [1]: "Rankings" [2]: "Title pages"'
)


@pytest.fixture(scope="module")
def library() -> TemplateLibrary:
    return TemplateLibrary.bundled()


@pytest.mark.parametrize("printed", PRINTED, ids=lambda one: f"{one.template}, {one.place}")
def test_as_printed(library: TemplateLibrary, printed: Printed) -> None:
    template = library.get(f"{printed.template}.v1")
    assert template.render(QUESTION, printed.passages, printed.turns) == printed.filled()
    assert template.scope is printed.scope


@pytest.mark.skipif(not PAPERS.is_dir(), reason="the papers do not lie beside the repository")
@pytest.mark.parametrize("printed", PRINTED, ids=lambda one: f"{one.template}, {one.place}")
def test_quoted_from_the_paper(printed: Printed) -> None:
    paper = (PAPERS / f"{printed.paper}.txt").read_text(encoding="utf-8").replace("‚Äô", "’")
    paper = re.sub(r"\n\d+\n\n--- PAGE \d+ ---\n", "\n", paper)
    assert " ".join(printed.text.split()) in " ".join(paper.split())


@pytest.mark.parametrize("task", LAMP)
def test_lamp_as_in_its_table(library: TemplateLibrary, task: str) -> None:
    """LaMP, table of prompts: concat([PPEP(P1), …, PPEP(Pn)], ", and ") and what follows it."""
    entry, rest, title, text = LAMP[task]
    profile = [Passage("a", "5", "a first text"), Passage("b", "4", "a second text")]
    entries = [entry.replace(f"P[{title}]", one.title).replace(f"P[{text}]", one.text) for one in profile]
    assert "P[" not in "".join(entries)
    expected = ", and ".join(entries) + rest.replace("[INPUT]", "Do this: x")
    template = library.get(f"{task}.v1")
    assert template.render("Do this: x", profile) == expected
    assert template.render("Do this: x", profile[:1]) == entries[0] + rest.replace("[INPUT]", "Do this: x")
    assert (template.scope, template.shows_turns) == (Scope.ALL_PASSAGES, False)


def test_lamp_1_puts_the_profile_behind_the_first_title(library: TemplateLibrary) -> None:
    """LaMP, table of prompts: add_to_paper_title(concat([PPEP(P1), …, PPEP(Pn)], ", and "), [INPUT])."""
    profile = [Passage("a", "Exposure", "an abstract"), Passage("b", "Attention", "")]
    head, rest = CITATION[: CITATION.index("title") + len("title")], CITATION[CITATION.index("title") + 5 :]
    template = library.get("lamp-1.v1")
    assert template.render(CITATION, profile) == head + ', and "Exposure", and "Attention"' + rest
    assert template.render("Which?", profile) == '"Exposure", and "Attention". Which?', "nothing gets lost"
    assert template.scope is Scope.ALL_PASSAGES


def test_question(library: TemplateLibrary) -> None:
    """The input of RA-X without any document, and of LaMP without a profile."""
    template = library.get("question.v1")
    assert template.render(QUESTION) == QUESTION
    assert template.scope is Scope.NO_PASSAGE


def test_fusion_in_decoder(library: TemplateLibrary) -> None:
    """Izacard and Grave, Fusion-in-Decoder, section 3: question:, title: and context: before each part."""
    template = library.get("fusion-in-decoder.v1")
    assert template.render(QUESTION, PASSAGES[:1]) == (
        "question: who wrote Hamlet? title: Hamlet context: A play by William Shakespeare."
    )
    assert template.scope is Scope.ONE_PASSAGE


def test_every_template_is_compared_with_its_paper(library: TemplateLibrary) -> None:
    compared = {one.template for one in PRINTED} | set(LAMP) | {"lamp-1", "question", "fusion-in-decoder"}
    assert {name for name in library.names if ".v" not in name} == compared


def test_only_prompts_of_conversations_show_turns(library: TemplateLibrary) -> None:
    showing = {name for name in library.names if ".v" not in name and library.get(name).shows_turns}
    assert showing == {"rankrag-answer-conversation", "rankrag-chat", "rankrag-context-ranking-conversation"}
    assert "User: " not in library.get("rankrag-chat").render(QUESTION).split("User: who wrote")[0]


def test_every_file_says_where_it_is_from() -> None:
    folder = resources.files("evenmesh_generator") / "templates"
    for file in folder.iterdir():
        first, _, rest = file.read_text(encoding="utf-8").partition("\n")
        assert re.fullmatch(r"\{# .+ #\}", first), file.name
        assert "{#" not in rest, file.name
