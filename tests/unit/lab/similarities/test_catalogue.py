"""Similarities by name, and models that are not there."""

from __future__ import annotations

from pathlib import Path
from threading import Thread

import pytest

from evenmesh_core.errors import InvalidInput
from evenmesh_lab.similarities import MissingModel, Models, Similarities, load, names
from evenmesh_lab.similarities.models import Once
from tests.unit.lab.similarities.conftest import Classifier

_CALLED = {"bert_score": "--bert-score", "nli": "THE_NLI_MODEL", "answer_equivalence": "--bem"}


def test_the_names_there_are() -> None:
    assert names() == (
        "token_f1",
        "containment_em",
        "embedding_cosine",
        "bert_score",
        "nli",
        "nli_question",
        "answer_equivalence",
    )
    with pytest.raises(InvalidInput, match="'bleu'; allowed: token_f1, containment_em"):
        load("bleu", Models())


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        ("bert_score", "--bert-score"),
        ("nli", "THE_NLI_MODEL"),
        ("nli_question", "THE_NLI_MODEL"),
        ("answer_equivalence", "--bem"),
    ],
)
def test_without_a_model_the_setting_is_named(name: str, setting: str) -> None:
    with pytest.raises(MissingModel, match=f"^{setting}: not set, and {name} needs it") as caught:
        load(name, Models(called=_CALLED))
    assert caught.value.setting == setting


@pytest.mark.parametrize("name", ["embedding_cosine", "bert_score", "nli", "answer_equivalence"])
def test_a_missing_model_is_an_error_on_first_use(name: str) -> None:
    gone = "no-such-owner/no-such-model"
    similarity = load(name, Models(embedding=gone, bert_score=gone, nli=gone, answer_equivalence=gone))
    for _ in range(2):  # not remembered: it may come
        with pytest.raises(MissingModel, match=f"neither a folder .*hf download {gone}"):
            similarity.matrix(["a", "b"], question="which?")


@pytest.mark.parametrize("name", ["embedding_cosine", "bert_score", "nli", "answer_equivalence"])
@pytest.mark.parametrize("model", ["./no/such/folder", "~/no such folder"])
def test_a_path_that_is_no_folder(name: str, model: str) -> None:
    similarity = load(name, Models(embedding=model, bert_score=model, nli=model, answer_equivalence=model))
    with pytest.raises(MissingModel, match="there is no folder"):
        similarity.matrix(["a", "b"], question="which?")


@pytest.mark.parametrize("name", ["embedding_cosine", "bert_score", "nli", "answer_equivalence"])
def test_a_folder_of_something_else(name: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("[]")
    model = str(tmp_path)
    similarity = load(name, Models(embedding=model, bert_score=model, nli=model, answer_equivalence=model))
    with pytest.raises(MissingModel, match="cannot be used"):
        similarity.matrix(["a", "b"], question="which?")


def test_both_entailments_share_one_model(classifier: Classifier) -> None:
    folder = classifier({0: "contradiction", 1: "entailment"})
    similarities = Similarities(Models(nli=str(folder)))
    alone = similarities.get("nli").pairs([("water", "the fox")])
    (folder / "config.json").unlink()  # a second load would fail
    together = similarities.get("nli_question").pairs([("water", "the fox")], question="What boils?")
    assert alone[0] != together[0]


def test_what_is_made_once_is_made_by_one_of_many_threads() -> None:
    made: list[object] = []
    once = Once(lambda: made.append(object()) or made[-1])
    threads = [Thread(target=once.get) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == [once.get()]


def test_a_failure_is_not_remembered() -> None:
    outcomes = iter([OSError("not yet"), None])

    def make() -> str:
        if (error := next(outcomes)) is not None:
            raise error
        return "made"

    once = Once(make)
    with pytest.raises(OSError, match="not yet"):
        once.get()
    assert once.get() == "made"
