"""Pools: where they come from, what they want of a model, and what is wrong with them."""

from pathlib import Path

import pytest

from evenmesh_studies.ensembles.pool import read_pool, reports_context, required_augmentation, uses_knowledge


def test_a_pool_is_a_list_of_expressions_or_a_file_of_them(tmp_path: Path) -> None:
    assert read_pool("Wiki@10, SE@RR@5 & Wiki@5,ReFree").members == ("Wiki@10", "SE@RR@5&Wiki@5", "ReFree")
    path = tmp_path / "pool.toml"
    path.write_text('reranker = "rankrag"\nmembers = ["A@1", "A@RR@1"]\n')
    found = read_pool(str(path))
    assert (found.members, found.reranker, found.problems) == (("A@1", "A@RR@1"), "rankrag", ())


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("A@1", "--pool: has 1 retrievers; allowed: 2 to 20"),
        (",".join(f"A@{k}" for k in range(1, 22)), "--pool: has 21 retrievers; allowed: 2 to 20"),
        ("A@1,B@1, A @1", "--pool: has A@1 twice"),
    ],
)
def test_problems_of_a_list_are_reported(text: str, problem: str) -> None:
    assert read_pool(text).problems == (problem,)


def test_all_problems_of_a_file_are_reported_at_once(tmp_path: Path) -> None:
    path = tmp_path / "pool.toml"
    path.write_text('members = ["A@1"]\nreranker = 3\nvoting = "mean"\n')
    assert [one.removeprefix(f"{path}: ") for one in read_pool(str(path)).problems] == [
        "has the unknown key 'voting'; keys: members, reranker",
        "members: has 1 retrievers; allowed: 2 to 20",
        "reranker is 3; allowed: the name of one",
    ]
    path.write_text("members = 3")
    assert read_pool(str(path)).problems == (f"{path}: members is 3; allowed: a list of expressions",)
    path.write_text("members =")
    assert "is not TOML" in read_pool(str(path)).problems[0]
    assert "No such file" in read_pool(str(tmp_path / "none.toml")).problems[0]


@pytest.mark.parametrize(
    ("member", "wants", "knowledge", "reported"),
    [
        ("Wiki@10", None, False, True),
        ("ReFree", "retrieval_free", False, True),
        ("PK", "parametric_knowledge", True, False),
        ("PK&Wiki@5", "parametric_knowledge", True, True),
        ("(SE&PK@2)@RR@5", "parametric_knowledge", True, True),
        ("Wiki@5@CP", "compression", False, False),
        ("PKs@5", None, False, True),
    ],
)
def test_a_member_says_what_it_wants_of_a_model(
    member: str, wants: str | None, knowledge: bool, reported: bool
) -> None:
    assert (required_augmentation(member), uses_knowledge(member), reports_context(member)) == (
        wants,
        knowledge,
        reported,
    )
