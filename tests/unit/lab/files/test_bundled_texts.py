"""What the bundled models were trained on stands beside them, and is found by their versions."""

from __future__ import annotations

from pathlib import Path

import pytest

import evenmesh_models
from evenmesh_lab.files.trained_texts import find_trained_texts
from evenmesh_lab.studies.known_models import trained


@pytest.mark.parametrize("folder", [evenmesh_models.reader(), evenmesh_models.cross_encoder()])
def test_the_bundled_models_know_what_they_were_trained_on(folder: Path) -> None:
    found = find_trained_texts(folder)
    assert found is not None
    # a training question of SQuAD 1.1, as it is and otherwise written, and its passage's article
    assert found.has_question("To whom did the Virgin Mary allegedly appear in 1858 in Lourdes France?")
    assert found.has_question("to whom did the virgin mary allegedly appear, in 1858, in Lourdes (France)")
    assert not found.has_question("Which fairness dial does the study of the year 2031 have?")
    assert found.num_questions > 87_000
    assert found.num_passages > 18_000
    assert found.false_positives == pytest.approx(0.001, rel=0.1)
    assert found.unhashed == (evenmesh_models.MINILM,)


def test_the_bundled_models_stay_under_40_mb_with_everything() -> None:
    root = Path(evenmesh_models.__file__).parent
    files = [one for one in root.rglob("*") if one.is_file() and one.suffix not in (".py", ".pyc")]
    assert sum(one.stat().st_size for one in files) < 40_000_000


def test_the_bundled_reader_is_known_by_its_version_and_not_by_its_name() -> None:
    digest = evenmesh_models.fingerprint(evenmesh_models.reader() / evenmesh_models.WEIGHTS)[:16]
    asked = "To whom did the Virgin Mary allegedly appear in 1858 in Lourdes France?"
    for name, version in (("evenmesh-pointer", f"{digest}-spans"), ("rankrag", f"evenmesh-pointer@{digest}")):
        (found,) = trained({f"version of {name}": version}).values()
        assert found is not None
        assert found.has_question(asked)
    assert trained({"version of evenmesh-pointer": "0123456789abcdef"}) == {"evenmesh-pointer": None}


def test_the_bundled_cross_encoder_says_that_another_version_may_serve() -> None:
    (found,) = trained({"reranker of bm25": "cross-encoder 12ab"}).values()
    assert found is not None
    assert found.unhashed[-1] == "what a version promoted since learned"
