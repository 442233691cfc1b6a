import pytest

from evenmesh_core.ensemble import containment_em, similarity_matrix, vote
from evenmesh_core.errors import InvalidInput
from evenmesh_core.text_metrics import token_f1


@pytest.mark.parametrize(
    ("left", "right", "similarity"),
    [
        ("Paris", "in Paris, France", 1.0),
        ("in Paris, France", "paris", 1.0),
        ("The Beatles", "Beatles", 1.0),
        ("art", "Bart", 0.0),
        ("12", "1200", 0.0),
        ("Rome", "Paris", 0.0),
        ("", "the", 1.0),
        ("", "Paris", 0.0),
    ],
)
def test_containment_in_either_direction(left, right, similarity):
    assert containment_em(left, right) == similarity
    assert containment_em(right, left) == similarity


def test_a_matrix_of_similarities_is_what_a_vote_takes():
    answers = ["in Paris", "Paris", "Rome"]
    exact, overlap = similarity_matrix(answers, containment_em), similarity_matrix(answers, token_f1)
    assert exact.tolist() == [[1, 1, 0], [1, 1, 0], [0, 0, 1]]
    assert overlap[0, 1] == pytest.approx(2 * (1 / 2) * 1 / (1 / 2 + 1))
    assert vote([exact, overlap], [0.5, 0.5], [1, 1, 1]).winner == 0


def test_no_answers_are_refused():
    with pytest.raises(InvalidInput, match=r"answers is .*at least one"):
        similarity_matrix([], containment_em)
