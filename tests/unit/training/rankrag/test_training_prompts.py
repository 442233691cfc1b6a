"""The prompts of training, to the letter of appendix C."""

import pytest

from evenmesh_generator.domain import Passage, Turn
from evenmesh_training.rankrag.data.examples import Example, Form, Kind, Shown
from evenmesh_training.rankrag.data.prompts import PromptWriter

SYSTEM = (
    "System: This is a chat between a user and an artificial intelligence assistant. The assistant gives "
    "helpful, detailed, and polite answers to the user’s questions based on the context. The assistant should "
    "also indicate when the answer cannot be found in the context.\n"
)
TURNS = (Turn("Hi?", "Hello."), Turn("And?", "So."))
TALK = "User: Hi?\nAssistant: Hello.\nUser: And?\nAssistant: So.\n"
FIVE = "".join(f"Passage {n}: T{n} text {n}\n" for n in range(1, 6))
SHORT = "Answer the following question with a short span."
LONG = "Please give a full and complete answer for the question."


def write(kind: Kind, passages: int, *, turns: tuple[Turn, ...] = (), form: Form = Form.SHORT) -> str:
    shown = tuple(
        Shown(Passage(str(n), f"T{n}", f"text {n}"), gold=n == 1, holds=n == 1)
        for n in range(1, passages + 1)
    )
    example = Example(kind, "s", "i", "Who?", turns, shown, "x", ("x",), form)
    return PromptWriter.bundled().write(example)


def test_stage_one_is_a_conversation() -> None:
    assert write(Kind.SFT, 0, turns=TURNS) == SYSTEM + TALK + "User: Who?\nAssistant:"


def test_context_rich_question() -> None:
    assert write(Kind.CONTEXT_RICH_QA, 1) == (SYSTEM + f"Passage: T1 text 1\nUser: {SHORT} Who?\nAssistant:")


def test_the_instruction_stands_before_the_first_words_of_a_conversation() -> None:
    assert write(Kind.CONTEXT_RICH_QA, 1, turns=TURNS, form=Form.LONG) == (
        SYSTEM + "Passage: T1 text 1\n" + TALK.replace("Hi?", f"{LONG} Hi?") + "User: Who?\nAssistant:"
    )


def test_context_rich_claim() -> None:
    assert write(Kind.CONTEXT_RICH_QA, 1, form=Form.CLAIM) == (
        SYSTEM + "Passage: T1 text 1\nUser: Answer the following question with True or False. "
        "Is the claim ’Who?’ correct?\nAssistant:"
    )


@pytest.mark.parametrize(
    ("form", "instruction"),
    [
        (
            Form.ARITHMETIC,
            "Answer the following question with a number from the context or through math arithmetic.",
        ),
        (
            Form.SHORT_OR_LONG,
            "Answer the following question with a short span, or a full and complete answer.",
        ),
    ],
)
def test_the_two_instructions_of_tat_qa(form: Form, instruction: str) -> None:
    assert write(Kind.CONTEXT_RICH_QA, 1, form=form) == (
        SYSTEM + f"Passage: T1 text 1\nUser: {instruction} Who?\nAssistant:"
    )


def test_retrieval_augmented_question() -> None:
    assert write(Kind.RETRIEVAL_AUGMENTED_QA, 5) == SYSTEM + FIVE + f"User: {SHORT} Who?\nAssistant:"


def test_retrieval_augmented_ranking() -> None:
    assert write(Kind.RETRIEVAL_AUGMENTED_RANKING, 5) == (
        SYSTEM + FIVE + "User: For the question Who?, access whether the above passages are relevant to the "
        "question. Return all the relevant passage id.\nAssistant:"
    )


@pytest.mark.parametrize(
    ("turns", "form", "expected"),
    [
        (
            (),
            Form.SHORT,
            "User: For the question Who?, access whether the passage is relevant to the question.",
        ),
        ((), Form.CLAIM, "User: For the claim Who?, access whether the passage is relevant to the claim."),
        (
            TURNS,
            Form.LONG,
            TALK + "User: For the question Who?, access whether the passage is relevant to the question.",
        ),
    ],
)
def test_context_ranking(turns: tuple[Turn, ...], form: Form, expected: str) -> None:
    assert write(Kind.CONTEXT_RANKING, 1, turns=turns, form=form) == (
        SYSTEM + "Passage: T1 text 1\n" + expected + " Return True if relevant, otherwise False.\nAssistant:"
    )
