"""The task of rewriting a turn for the model."""

from evenmesh.generator.v1.generator_service_pb2 import Turn
from evenmesh_core.earlier_words import MAX_BYTES
from evenmesh_orchestrator.conversations.rewriting import REWRITE_TEMPLATE, rewrite_prompt
from tests.unit.orchestrator.fakes import ask


def test_the_task_of_a_rewrite_has_the_turns_in_their_order() -> None:
    turns = [
        Turn(question="Where does the Danube rise?", answer="In Donaueschingen"),
        Turn(question="And end?"),
    ]
    prompt = rewrite_prompt(ask(question="How long is it?"), turns)
    assert prompt.question == (
        "Rewrite the last question so that it can be understood without the conversation.\n"
        "Question: Where does the Danube rise?\nAnswer: In Donaueschingen\n"
        "Question: And end?\nAnswer: \n"
        "Last question: How long is it?\nRewritten question:"
    )
    assert (prompt.template, list(prompt.passages)) == (REWRITE_TEMPLATE, [])


def test_the_oldest_turns_are_left_out_of_a_task_that_would_be_too_long() -> None:
    turns = [Turn(question=f"{place} " + "q" * 3000, answer="a" * 5000) for place in range(4)]
    prompt = rewrite_prompt(ask(question="And?"), turns)
    assert "Question: 3 " in prompt.question
    assert "Question: 0 " not in prompt.question
    assert len(prompt.question.encode()) <= MAX_BYTES
