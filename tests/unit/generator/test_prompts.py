"""Templates by name, those of one's own, and the rules by which prompts are made to fit."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenmesh.wire.errors import InvalidField, NotFound
from evenmesh_generator.domain import Augmentation, Passage, Turn
from evenmesh_generator.prompts import Scope, TemplateError, TemplateLibrary, cut_to_fit, most, most_passages


@pytest.fixture(scope="module")
def library() -> TemplateLibrary:
    return TemplateLibrary.bundled()


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


def test_a_template_must_suit_a_judgement(library: TemplateLibrary) -> None:
    assert library.judging("rankrag-context-ranking").scope is Scope.ONE_PASSAGE
    with pytest.raises(InvalidField, match="'question' holds no passage; a judgement needs one passage"):
        library.judging("question")
    with pytest.raises(NotFound, match="no template 'nope'"):
        library.judging("nope")


def test_a_template_must_show_the_turns_there_are(library: TemplateLibrary) -> None:
    assert library.suiting("rankrag-chat", Augmentation.RETRIEVAL_FREE, turns=True).shows_turns
    assert library.judging("rankrag-context-ranking-conversation", turns=True).shows_turns
    with pytest.raises(InvalidField, match="'ra-x' has no place for earlier turns") as caught:
        library.suiting("ra-x", Augmentation.IN_PROMPT, turns=True)
    assert caught.value.field == "turns"
    with pytest.raises(InvalidField, match="'rankrag-context-ranking' has no place for earlier turns"):
        library.judging("rankrag-context-ranking", turns=True)


def test_a_folder_adds_to_the_papers_templates(library: TemplateLibrary, tmp_path: Path) -> None:
    (tmp_path / "mine.v1.txt").write_text("{{ question }} – {{ documents | join }}", encoding="utf-8")
    (tmp_path / "ra-x.v2.txt").write_text("{{ question }}{{ documents | join }}", encoding="utf-8")
    (tmp_path / "README.md").write_text("not a template")
    both = TemplateLibrary.with_folder(tmp_path)
    assert set(both.names) - set(library.names) == {"mine", "mine.v1", "ra-x.v2"}
    assert both.get("mine").render("q", [Passage("a", "t", "x")]) == "q – t x"
    assert both.get("ra-x").version == 2
    assert both.get("ra-x.v1").render("q", [Passage("a", "t", "x")]) == "q context 1: t x"


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("ra-x.v1.txt", b"{{ question }}", "there is a ra-x.v1.txt already; raise the version in its name"),
        ("Mine.txt", b"{{ question }}", "Mine.txt: a template's name is like ra-x.v1.txt"),
        ("mine.v1.txt", b"caf\xe9", "mine.v1.txt: not UTF-8 at byte 3"),
        ("mine.v1.txt", b"{% nope %}", "mine.v1.txt: line 1: "),
    ],
)
def test_a_folder_with_a_fault_is_refused(tmp_path: Path, name: str, content: bytes, problem: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(TemplateError, match=problem):
        TemplateLibrary.with_folder(tmp_path)


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TemplateError, match="gone: No such file or directory"):
        TemplateLibrary.with_folder(tmp_path / "gone")
    (tmp_path / "dir.v1.txt").mkdir()
    with pytest.raises(TemplateError, match=r"dir\.v1\.txt: Is a directory"):
        TemplateLibrary.with_folder(tmp_path)


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("Bad name.txt", "x", "a template's name is like"),
        ("x.v1.txt", "one\n{% for", r"x\.v1\.txt: line 2: "),
        ("x.v1.txt", "{{ document.score }}", r"x\.v1\.txt: .*no attribute 'score'"),
        ("x.v1.txt", "{{ question + 1 }}", r"x\.v1\.txt: .*\+ needs two numbers, or two texts"),
        ("x.v1.txt", "{{ secret }}", r"\['secret'\] cannot be used"),
        ("x.v1.txt", "{{ document }}{{ documents }}", "cannot be used"),
    ],
)
def test_malformed_templates_are_refused(name: str, text: str, problem: str) -> None:
    with pytest.raises(TemplateError, match=problem):
        TemplateLibrary({name: text})


@pytest.mark.parametrize("text", ["{{ turns[0].answer }}", "{{ 1 // (turns | length) }}"])
def test_a_template_that_needs_what_a_request_lacks_is_named(text: str) -> None:
    """It is tried with one turn when it is loaded."""
    template = TemplateLibrary({"mine.v1.txt": "{{ question }}" + text}).get("mine")
    assert template.render("Which river?", turns=[Turn("Which town?", "Bonn")]).startswith("Which river?")
    with pytest.raises(InvalidField, match="'mine' cannot be rendered for this request: ") as caught:
        template.render("Which river?")
    assert caught.value.field == "template"


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


@given(st.integers(0, 200), st.integers(0, 200))
def test_no_more_than_twice_what_fits_is_tried_after_everything(limit: int, room: int) -> None:
    tried: list[int] = []

    def fits(count: int) -> bool:
        tried.append(count)
        return count <= room

    assert most(limit, fits) == min(limit, room)
    assert max(tried, default=0) <= max(1, 2 * room)


def test_cutting_a_long_passage_reads_what_fits_and_not_the_passage_again_and_again() -> None:
    read = 0

    def fits(shown: Passage) -> bool:
        nonlocal read
        read += len(shown.text)
        return len(shown.text) <= 1000

    cut = cut_to_fit(Passage("a", "", "word " * 13_107), fits)  # 64 KiB
    assert cut is not None
    assert len(cut.text) == 999  # 200 words and 199 spaces
    assert read < 20_000
