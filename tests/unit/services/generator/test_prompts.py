"""Every template to the letter of its paper, and the rules by which prompts are made to fit."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshkit.errors import InvalidField, NotFound
from services.generator.domain import Augmentation, Passage
from services.generator.prompts import Scope, TemplateLibrary, Turn, cut_to_fit, most_passages

QUESTION = "who wrote Hamlet?"
PASSAGES = (
    Passage("a", "Hamlet", "A play by William Shakespeare."),
    Passage("b", "", "Written about {1600}; {{ not a template }}."),
)
SYSTEM = (
    "System: This is a chat between a user and an artificial intelligence assistant. The assistant gives helpful, "
    "detailed, and polite answers to the user’s questions based on the context. The assistant should also "
    "indicate when the answer cannot be found in the context.\n"
)


@pytest.fixture(scope="module")
def library() -> TemplateLibrary:
    return TemplateLibrary.bundled()


def test_rankrag_d1_context_ranking(library: TemplateLibrary) -> None:
    """RankRAG, appendix D.1, NQ/TriviaQA/HotpotQA/PopQA; "access" is the paper's."""
    assert library.get("rankrag-context-ranking.v1").render(QUESTION, PASSAGES[:1]) == SYSTEM + (
        "Passage: Hamlet A play by William Shakespeare.\n"
        "User: For the question who wrote Hamlet?, access whether the passage is relevant to the question. "
        "Return True if relevant, otherwise False.\n"
        "Assistant:"
    )


def test_rankrag_d1_context_ranking_of_claims(library: TemplateLibrary) -> None:
    """RankRAG, appendix D.1, FEVER."""
    assert library.get("rankrag-context-ranking-claim.v1").render(
        "Hamlet is a comedy", PASSAGES[:1]
    ) == SYSTEM + (
        "Passage: Hamlet A play by William Shakespeare.\n"
        "User: For the claim Hamlet is a comedy, access whether the passage is relevant to the claim. "
        "Return True if relevant, otherwise False.\n"
        "Assistant:"
    )


def test_rankrag_d1_context_ranking_in_conversations(library: TemplateLibrary) -> None:
    """RankRAG, appendix D.1, Doc2dial, Inscit, TopiocQA."""
    turns = [Turn("what is Hamlet?", "a play"), Turn("where is it set?", "in Denmark")]
    assert library.get("rankrag-context-ranking-conversation.v1").render(
        QUESTION, PASSAGES[:1], turns
    ) == SYSTEM + (
        "Passage: Hamlet A play by William Shakespeare.\n"
        "User: what is Hamlet?\n"
        "Assistant: a play\n"
        "User: where is it set?\n"
        "Assistant: in Denmark\n"
        "User: For the question who wrote Hamlet?, access whether the passage is relevant to the question. "
        "Return True if relevant, otherwise False.\n"
        "Assistant:"
    )


def test_rankrag_d2_answer(library: TemplateLibrary) -> None:
    """RankRAG, appendix D.2, NQ/TriviaQA/HotpotQA/PopQA."""
    assert library.get("rankrag-answer.v1").render(QUESTION, PASSAGES) == SYSTEM + (
        "Passage 1: Hamlet A play by William Shakespeare.\n"
        "Passage 2: Written about {1600}; {{ not a template }}.\n"
        "User: who wrote Hamlet?. Answer the above question with a short phrase.\n"
        "Assistant:"
    )


def test_rankrag_d2_answer_to_claims(library: TemplateLibrary) -> None:
    """RankRAG, appendix D.2, FEVER."""
    assert library.get("rankrag-answer-claim.v1").render("Hamlet is a comedy", PASSAGES[:1]) == SYSTEM + (
        "Passage 1: Hamlet A play by William Shakespeare.\n"
        "User: Answer the following question with True or False. Is the claim ’Hamlet is a comedy’ correct?\n"
        "Assistant:"
    )


def test_rankrag_d2_answer_in_conversations(library: TemplateLibrary) -> None:
    """RankRAG, appendix D.2, Doc2dial, Inscit, TopiOCQA."""
    assert library.get("rankrag-answer-conversation.v1").render(
        QUESTION, PASSAGES[:1], [Turn("what is Hamlet?", "a play")]
    ) == SYSTEM + (
        "Passage 1: Hamlet A play by William Shakespeare.\n"
        "User: what is Hamlet?\n"
        "Assistant: a play\n"
        "User: who wrote Hamlet?\n"
        "Assistant:"
    )


def test_ra_x(library: TemplateLibrary) -> None:
    """Iterative utility maximisation, section 5.1: "{input} context 1: {doc1} . . . context k: {dock}"."""
    assert library.get("ra-x.v1").render(QUESTION, PASSAGES) == (
        "who wrote Hamlet? context 1: Hamlet A play by William Shakespeare. "
        "context 2: Written about {1600}; {{ not a template }}."
    )


def test_question(library: TemplateLibrary) -> None:
    """The input of RA-X without any document."""
    assert library.get("question.v1").render(QUESTION) == QUESTION


def test_fusion_in_decoder(library: TemplateLibrary) -> None:
    """Izacard and Grave, Fusion-in-Decoder, section 3: question:, title: and context: before each part."""
    assert library.get("fusion-in-decoder.v1").render(QUESTION, PASSAGES[:1]) == (
        "question: who wrote Hamlet? title: Hamlet context: A play by William Shakespeare."
    )


def test_eor_parametric_knowledge(library: TemplateLibrary) -> None:
    """Ensemble of retrievers, appendix C.2, PK."""
    assert library.get("eor-parametric-knowledge.v1").render(QUESTION) == (
        "Generate a background document to answer the given question.\nwho wrote Hamlet?."
    )


def test_eor_compression(library: TemplateLibrary) -> None:
    """Ensemble of retrievers, appendix C.2, @CP; several passages are one document, a line each."""
    assert library.get("eor-compression.v1").render(QUESTION, PASSAGES[:1]) == (
        "Please truthfully summarize the document below, the summary should contain the most important "
        "information relevant to answer the query and be within 200 words:\n"
        "query: who wrote Hamlet?\n"
        "\n"
        "document: Hamlet A play by William Shakespeare.\n"
        "\n"
        "summary:"
    )


@pytest.mark.parametrize(
    ("model", "length"), [("chatgpt", "within 15 words"), ("llama2-chat", "with one or few words")]
)
def test_eor_retrieval_free(library: TemplateLibrary, model: str, length: str) -> None:
    """Ensemble of retrievers, appendix C.2, retrieval-free generation."""
    assert library.get(f"eor-retrieval-free-{model}.v1").render(QUESTION) == (
        f"Please directly answer the following question {length}:\nwho wrote Hamlet?"
    )


@pytest.mark.parametrize(
    ("model", "length"), [("chatgpt", "within 15 words"), ("llama2-chat", "with one or few words")]
)
def test_eor_retrieval_augmented(library: TemplateLibrary, model: str, length: str) -> None:
    """Ensemble of retrievers, appendix C.2, retrieval-augmented generation; several documents concatenated."""
    assert library.get(f"eor-retrieval-augmented-{model}.v1").render(QUESTION, PASSAGES) == (
        "Assuming the following paragraphs are true:\n"
        "\n"
        "Hamlet A play by William Shakespeare.\n"
        "Written about {1600}; {{ not a template }}.\n"
        "\n"
        f"Please directly answer the following question {length}:\n"
        "who wrote Hamlet?"
    )


def test_every_template_has_a_test_here(library: TemplateLibrary) -> None:
    tested = {
        "eor-compression", "eor-parametric-knowledge", "eor-retrieval-augmented-chatgpt",
        "eor-retrieval-augmented-llama2-chat", "eor-retrieval-free-chatgpt", "eor-retrieval-free-llama2-chat",
        "fusion-in-decoder", "question", "ra-x", "rankrag-answer", "rankrag-answer-claim",
        "rankrag-answer-conversation", "rankrag-context-ranking", "rankrag-context-ranking-claim",
        "rankrag-context-ranking-conversation",
    }  # fmt: skip
    assert {name for name in library.names if ".v" not in name} == tested


def test_a_name_without_version_is_the_newest() -> None:
    library = TemplateLibrary({"x.v1.txt": "one {{ question }}", "x.v10.txt": "ten", "x.v2.txt": "two"})
    assert library.get("x").version == 10
    assert library.get("x.v1").render("q") == "one q"


def test_unknown_template_is_not_found(library: TemplateLibrary) -> None:
    with pytest.raises(NotFound, match=r"no template 'nope'; there are .*ra-x") as caught:
        library.get("nope")
    assert caught.value.field == "template"


def test_a_template_must_suit_the_augmentation(library: TemplateLibrary) -> None:
    assert library.suiting("ra-x", Augmentation.IN_PROMPT).scope is Scope.ALL_PASSAGES
    with pytest.raises(InvalidField, match="'ra-x' holds all passages; retrieval-free needs no passage"):
        library.suiting("ra-x", Augmentation.RETRIEVAL_FREE)
    with pytest.raises(InvalidField, match="needs one passage"):
        library.suiting("question", Augmentation.FUSION_IN_DECODER)


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("Bad name.txt", "x", "a template's name is like"),
        ("x.v1.txt", "{% for", "x.v1.txt"),
        ("x.v1.txt", "{{ secret }}", r"\['secret'\] cannot be used"),
        ("x.v1.txt", "{{ document }}{{ documents }}", "cannot be used"),
    ],
)
def test_malformed_templates_are_refused(name: str, text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        TemplateLibrary({name: text})


@given(st.integers(0, 120), st.integers(0, 150))
def test_most_passages_is_the_longest_prefix_that_fits(count: int, room: int) -> None:
    passages = [Passage(str(i), "", "x") for i in range(count)]
    assert most_passages(passages, lambda shown: len(shown) <= room) == min(count, room)


@given(st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=30), st.integers(0, 100))
def test_cut_to_fit_keeps_as_many_whole_words_as_fit(words: list[str], room: int) -> None:
    text = " ".join(words)
    cut = cut_to_fit(Passage("a", "title", text), lambda shown: len(shown.text) <= room)
    fitting = [n for n in range(1, len(words) + 1) if len(" ".join(words[:n])) <= room]
    assert (cut.text if cut else None) == (" ".join(words[: fitting[-1]]) if fitting else None)
