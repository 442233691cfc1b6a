"""The template of a request: the one it names, or a default, which shows earlier turns where it can."""

from __future__ import annotations

from pathlib import Path

import pytest

from evenmesh.wire.errors import InvalidField
from evenmesh_generator.backends.remote_prompter import PromptOptions, RemotePrompter
from evenmesh_generator.domain import Augmentation, GenerationRequest, Passage, Turn
from evenmesh_generator.prompts import TemplateLibrary
from evenmesh_generator.runtime.prompts.choice import TemplateChooser

PASSAGES = (Passage("a", "Chains", "Oil them."),)
TURNS = (Turn("And brakes?", "Adjust them."), Turn("And saddles?", "Wipe them."))


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> TemplateLibrary:
    folder: Path = tmp_path_factory.mktemp("templates")
    (folder / "plain.v1.txt").write_text("{{ documents | join }} {{ question }}")
    (folder / "turned.v1.txt").write_text("{{ turns | length }} {{ documents | join }} {{ question }}")
    return TemplateLibrary.with_folder(folder)


def _request(
    augmentation: Augmentation, *, turns: tuple[Turn, ...] = TURNS, template: str = ""
) -> GenerationRequest:
    passages = () if augmentation is Augmentation.RETRIEVAL_FREE else PASSAGES
    return GenerationRequest(
        "How often?", passages, augmentation=augmentation, template=template, turns=turns
    )


@pytest.mark.parametrize(
    ("augmentation", "alone", "after_turns"),
    [
        (Augmentation.IN_PROMPT, "rankrag-answer", "rankrag-answer-conversation"),
        (Augmentation.RETRIEVAL_FREE, "question", "rankrag-chat"),
        (Augmentation.FUSION_IN_DECODER, "fusion-in-decoder", "fusion-in-decoder"),
    ],
)
def test_a_default_shows_turns_where_there_are_any(
    library: TemplateLibrary, augmentation: Augmentation, alone: str, after_turns: str
) -> None:
    chooser = TemplateChooser(library, in_prompt="rankrag-answer", free="question")
    assert chooser.of(_request(augmentation, turns=())).name == alone
    assert chooser.of(_request(augmentation)).name == after_turns


@pytest.mark.parametrize("named", ["plain", "turned"])
def test_the_operators_template_stays_in_a_conversation(library: TemplateLibrary, named: str) -> None:
    chooser = TemplateChooser(library, in_prompt="rankrag-answer", free="question", named=named)
    assert chooser.of(_request(Augmentation.IN_PROMPT)).name == named
    assert chooser.of(_request(Augmentation.RETRIEVAL_FREE)).name == "rankrag-chat"


def test_a_template_that_a_request_names_must_show_its_turns(library: TemplateLibrary) -> None:
    chooser = TemplateChooser(library, in_prompt="rankrag-answer", free="question")
    assert chooser.of(_request(Augmentation.IN_PROMPT, template="turned")).name == "turned"
    with pytest.raises(InvalidField, match="'plain' has no place for earlier turns"):
        chooser.of(_request(Augmentation.IN_PROMPT, template="plain"))


@pytest.mark.parametrize("chat", [True, False])
def test_a_server_reads_earlier_turns(library: TemplateLibrary, chat: bool) -> None:
    fitted = _prompter(library, chat=chat).prompt(_request(Augmentation.IN_PROMPT))
    assert fitted.row.endswith(
        "Passage 1: Chains Oil them.\n"
        "User: And brakes?\nAssistant: Adjust them.\nUser: And saddles?\nAssistant: Wipe them.\n"
        "User: How often?\nAssistant:"
    )
    assert fitted.dropped_turns == 0


def test_turns_without_a_place_are_counted(library: TemplateLibrary) -> None:
    fitted = _prompter(library, template="plain").prompt(_request(Augmentation.IN_PROMPT))
    assert (fitted.row, fitted.dropped_turns) == ("Chains Oil them. How often?", 2)


def test_the_oldest_turns_are_left_out_of_a_prompt_that_is_too_long(library: TemplateLibrary) -> None:
    prompter = _prompter(library)
    request = _request(Augmentation.IN_PROMPT)
    whole = len(prompter.prompt(request).row.encode())
    fitted = prompter.prompt(request, most_bytes=whole - 1)
    assert fitted.dropped_turns == 1
    assert "And brakes?" not in fitted.row
    assert "And saddles?" in fitted.row


def _prompter(library: TemplateLibrary, *, chat: bool = False, template: str = "") -> RemotePrompter:
    return RemotePrompter(library, PromptOptions("m", chat, template, 4096, 3.0))
