"""The blend: shares, what is missing, determinism, and what examples are made of."""

import dataclasses
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenmesh_generator.pointer.abstention import ABSTENTION
from evenmesh_training.rankrag.data.blend import BLOCK, Blend, apportion, effective, redistributed, summary
from evenmesh_training.rankrag.data.examples import Example, Form, Kind
from evenmesh_training.rankrag.recipe import Recipe, RecipeError, Source, parse
from tests.unit.training.rankrag.towns import TOWNS, Write, passage, question

RICH, RQA, RANK, SFT = (
    Kind.CONTEXT_RICH_QA,
    Kind.RETRIEVAL_AUGMENTED_QA,
    Kind.CONTEXT_RANKING,
    Kind.SFT,
)


def test_shares_are_the_ratios_normalised() -> None:
    assert redistributed([(RICH, 3, True), (RANK, 1, True)]) == [3 / 4, 1 / 4]


def test_a_missing_share_goes_to_its_kind() -> None:
    shares = redistributed([(RICH, 2, False), (RICH, 1, True), (RICH, 3, True), (RANK, 4, True)])
    assert shares == pytest.approx([0, 6 / 10 * 1 / 4, 6 / 10 * 3 / 4, 4 / 10])


def test_the_share_of_a_kind_that_is_missing_altogether_goes_to_all() -> None:
    shares = redistributed([(SFT, 2, False), (RICH, 2, True), (RANK, 4, True), (RANK, 2, False)])
    # 8 / 10 is left: 2 of context-rich QA and 6 of ranking
    assert shares == pytest.approx([0, 2 / 8, 6 / 8, 0])


def test_nothing_there_has_no_shares() -> None:
    assert redistributed([(SFT, 2, False)]) == [0]


@given(st.lists(st.floats(0.01, 1.0), min_size=1, max_size=9), st.integers(1, 2000))
def test_apportionment_gives_all_seats_within_one_of_the_share(shares: list[float], seats: int) -> None:
    shares = [share / sum(shares) for share in shares]
    given_ = apportion(shares, seats)
    assert sum(given_) == seats
    assert all(abs(count - share * seats) < 1 + 1e-9 for count, share in zip(given_, shares, strict=True))


def test_apportionment_by_hand() -> None:
    # 10/3 and 20/3: remainders 1/3 and 2/3, so the second gets the last seat
    assert apportion([1 / 3, 2 / 3], 10) == [3, 7]
    assert apportion([0.25, 0.25, 0.5], 2) == [1, 0, 1]  # a tie goes to the earlier one


def source(name: str, ratio: float, instead_of: str | None = None) -> Source:
    return Source(name=name, dataset="squad-open", kind=RICH, ratio=ratio, instead_of=instead_of)


def test_stand_ins_share_what_the_missing_one_would_have_had() -> None:
    sources = [
        source("a", 0.6),
        source("b", 0.2),
        source("x", 3, "a"),
        source("y", 1, "a"),
        source("z", 5, "b"),
    ]
    ratios, notes = effective(sources, {"b", "x", "y", "z"})
    assert ratios == pytest.approx([0, 0.2, 0.6 * 3 / 4, 0.6 * 1 / 4, 0])
    assert notes == [None, None, None, None, "b is there"]
    ratios, _ = effective(sources, {"b", "z"})
    assert ratios == [0.6, 0.2, 0, 0, 0]  # nothing stands in for a, whose share is redistributed later


def test_every_block_has_the_shares_exactly(squad: Path, recipe: Recipe) -> None:
    blend = Blend(recipe, squad)
    for block in (0, 3):
        counts = Counter(blend[block * BLOCK + at].source for at in range(BLOCK))
        assert counts == {"rich": BLOCK // 2, "augmented": BLOCK // 4, "ranking": BLOCK // 4}


def test_any_example_can_be_made_alone_and_is_the_same_again(squad: Path, recipe: Recipe) -> None:
    one, other = Blend(recipe, squad), Blend(recipe, squad)
    in_order = [one[index] for index in range(60)]
    assert [other[index] for index in reversed(range(60))] == in_order[::-1]
    reseeded = Blend(recipe.model_copy(update={"seed": 6}), squad)
    assert [reseeded[index] for index in range(60)] != in_order
    assert next(iter(one)) == in_order[0]


def test_every_question_is_used_once_per_epoch(squad: Path, recipe: Recipe) -> None:
    blend = Blend(recipe, squad)
    asked = [example.id for index in range(200) if (example := blend[index]).source == "rich"]
    for epoch in range(3):
        assert set(asked[epoch * 12 : epoch * 12 + 12]) == {f"q-p-{town}" for town in TOWNS}


def examples(blend: Blend, name: str, count: int = 400) -> list[Example]:
    return [example for index in range(count) if (example := blend[index]).source == name]


def test_augmented_contexts_have_the_gold_passage_shuffled_in(squad: Path, recipe: Recipe) -> None:
    places = Counter()
    for example in examples(Blend(recipe, squad), "augmented"):
        assert len(example.shown) == 3
        assert len({one.passage.id for one in example.shown}) == 3
        gold = [at for at, one in enumerate(example.shown) if one.gold]
        if gold:
            places[gold[0]] += 1
            assert example.answer == example.answers[0]
            assert example.shown[gold[0]].passage.id == f"p-{example.id.removeprefix('q-p-')}"
        else:
            assert example.answer == ABSTENTION
            assert not any(one.holds for one in example.shown)
    assert set(places) == {0, 1, 2}


def test_raft_shows_each_passage_alone_with_the_answer(squad: Path, recipe: Recipe) -> None:
    """Some passages hold no answer; it is asked for all the same, as in RA-DIT."""
    context = recipe.context.model_copy(update={"separate": True, "unanswerable": 0.0})
    found = examples(Blend(recipe.model_copy(update={"context": context}), squad), "augmented")
    assert {len(one.shown) for one in found} == {1}
    assert all(one.answer == one.answers[0] for one in found)
    gold = sum(one.shown[0].gold for one in found) / len(found)
    assert 0.1 < gold < 0.6  # one passage of three is gold


def test_a_source_decides_the_form_of_its_questions(squad: Path, recipe: Recipe) -> None:
    sources = [one.model_copy(update={"form": Form.ARITHMETIC}) for one in recipe.source]
    blend = Blend(recipe.model_copy(update={"source": sources}), squad)
    assert {one.form for one in examples(blend, "rich", 40)} == {Form.ARITHMETIC}
    assert {one.form for one in examples(Blend(recipe, squad), "rich", 40)} == {Form.SHORT}


def test_about_the_asked_share_is_unanswerable(squad: Path, recipe: Recipe) -> None:
    for name in ("rich", "augmented"):
        found = examples(Blend(recipe, squad), name, 2000)
        share = sum(example.answer == ABSTENTION for example in found) / len(found)
        # recipe: 0.3; four standard errors of 500 draws are 0.08
        assert 0.22 < share < 0.38
        altered = [one for example in found for one in example.shown if one.altered]
        assert altered
        assert all("Keller" not in one.passage.text and not one.gold for one in altered)


def test_ranking_shows_one_passage_true_half_of_the_time(squad: Path, recipe: Recipe) -> None:
    found = examples(Blend(recipe, squad), "ranking", 2000)
    assert {len(example.shown) for example in found} == {1}
    assert {example.target for example in found} == {"True", "False"}
    share = sum(example.target == "True" for example in found) / len(found)
    assert 0.41 < share < 0.59
    for example in found:
        (one,) = example.shown
        assert one.gold is (one.passage.id.removeprefix("p-") == example.id.removeprefix("q-p-"))


def test_retrieved_passages_with_the_answer_are_relevant_but_not_gold(squad: Path, write: Write) -> None:
    twin = passage("Aarau") | {"id": "p-twin", "title": "twin"}
    write("squad-open/passages.train.jsonl.gz", [passage(town) for town in TOWNS] + [twin])
    write("squad-open/questions.train.jsonl.gz", [question("Aarau")])
    made = parse(
        '[context]\npassages = 3\ndepth = 5\n[[source]]\nname = "r"\ndataset = "squad-open"\n'
        'kind = "retrieval-augmented-ranking"\nratio = 1\n'.replace("[context]", 'name = "x"\n[context]', 1),
        origin="x",
    )
    example = Blend(made, squad)[0]
    said = {one.passage.id: (one.gold, one.holds, one.irrelevant) for one in example.shown}
    assert said["p-Aarau"] == (True, True, False)
    assert said["p-twin"] == (False, True, False)
    relevant = [n for n, one in enumerate(example.shown, start=1) if one.passage.title in ("Aarau", "twin")]
    assert example.target == ", ".join(map(str, relevant))


def test_leaks_are_removed_and_counted(squad: Path, write: Write, recipe: Recipe) -> None:
    write(
        "squad-open/questions.dev.jsonl.gz", [question("Chur", prefix="d") | {"gold_passage_ids": ["d-Muri"]}]
    )
    blend = Blend(recipe, squad)
    assert {row.leaked.questions for row in blend.rows} == {1}
    assert {row.items for row in blend.rows} == {11}
    assert "q-p-Chur" not in {blend[index].id for index in range(300)}


def test_missing_data_and_licences_are_named(squad: Path, recipe: Recipe) -> None:
    extra = [
        Source(name="gone", dataset="fever-symmetric", kind=RANK, ratio=4),
        Source(name="mine", dataset="qa", kind=RICH, ratio=4, path="mine.jsonl"),
        Source(name="talk", dataset="topiocqa", kind=SFT, ratio=4),
    ]
    allowed = recipe.model_copy(
        update={"source": (*recipe.source, *extra), "licences": ("attribution", "own")}
    )
    blend = Blend(allowed, squad)
    reasons = {row.source.name: row.missing or "" for row in blend.rows}
    assert "claims.jsonl.gz" in reasons["gone"] or "passages.jsonl.gz" in reasons["gone"]
    assert "mine.jsonl" in reasons["mine"]
    assert reasons["talk"] == "licence non-commercial is not for this recipe"
    # of 16: rich 2 + mine 4, augmented 1, ranking 1 + gone 4 are left of their kinds; sft's 4 go to all
    shares = {row.source.name: row.share for row in blend.rows}
    assert shares == pytest.approx(
        {"rich": 6 / 12, "augmented": 1 / 12, "ranking": 5 / 12, "gone": 0, "mine": 0, "talk": 0}
    )
    notes = summary(blend)
    assert len(next(iter(notes.values()))) == 3
    assert notes["compared with"] == ["squad-open"]


def test_an_evaluation_set_that_is_missing_is_reported(squad: Path, recipe: Recipe) -> None:
    both = (*recipe.evaluation, recipe.evaluation[0].model_copy(update={"dataset": "clapnq"}))
    blend = Blend(recipe.model_copy(update={"evaluation": both}), squad)
    assert [note.split(" ")[0] for note in blend.unprotected] == ["clapnq"]


def test_an_empty_blend_is_refused_with_its_reasons(root: Path, recipe: Recipe) -> None:
    with pytest.raises(RecipeError, match=r"the blend is empty .*rich: no .*passages\.train\.jsonl\.gz"):
        Blend(recipe.model_copy(update={"evaluation": ()}), root)
    with pytest.raises(RecipeError, match="no data folder"):
        Blend(recipe, root / "nowhere")


def test_stage_one_needs_conversations(squad: Path, recipe: Recipe) -> None:
    with pytest.raises(RecipeError, match="no source of kind sft"):
        Blend(recipe, squad, stage=1)


def test_answers_of_signs_alone_are_left_out(squad: Path, write: Write, recipe: Recipe) -> None:
    write("squad-open/questions.train.jsonl.gz", [question("Aarau"), question("Chur") | {"answers": ["$"]}])
    assert {(row.items, row.unusable) for row in Blend(recipe, squad).rows} == {(1, 1)}


def test_claims_and_labelled_chunks_take_their_own_negatives(root: Path, write: Write) -> None:
    rows = [
        {
            "question": "q",
            "answers": ["True"],
            "form": "claim",
            "passages": [{"text": "yes True", "gold": True}, *({"text": f"no{n} True"} for n in range(4))],
        }
    ]
    write("mine.jsonl.gz", rows)
    made = parse(
        'name = "x"\n[[source]]\nname = "r"\ndataset = "qa"\npath = "mine.jsonl.gz"\n'
        'kind = "retrieval-augmented-ranking"\nratio = 1\n',
        origin="x",
    )
    example = Blend(made, root)[0]
    assert example.form is Form.CLAIM
    assert {(one.passage.text[:2], one.gold, one.irrelevant) for one in example.shown} == {
        ("ye", True, False),
        ("no", False, True),
    }


def test_an_example_without_an_answer_in_sight_is_not_answerable(squad: Path, recipe: Recipe) -> None:
    for example in examples(Blend(recipe, squad), "augmented"):
        assert example.answerable is (example.answer != ABSTENTION)
        bare = dataclasses.replace(example, shown=())
        assert not bare.answerable
