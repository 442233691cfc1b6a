"""Recipes: what is accepted, what is refused, and how the schedule runs."""

import pytest

from evenmesh_training.rankrag import recipe
from evenmesh_training.rankrag.data.examples import Kind
from evenmesh_training.rankrag.recipe import RecipeError, Stage

ONE = '[[source]]\nname = "a"\ndataset = "squad-open"\nkind = "context-rich-qa"\nratio = 1\n'


def test_the_presets_that_ship_are_valid() -> None:
    assert list(recipe.presets()) == ["bundled", "documentation", "gpu", "laptop", "paper"]
    assert {name: recipe.load(name).name for name in recipe.presets()} == {
        name: name for name in recipe.presets()
    }


def test_the_paper_preset_has_the_papers_settings() -> None:
    paper = recipe.load("paper")
    one, two = paper.stage(1), paper.stage(2)
    # section 5.1
    assert (one.batch_size, one.steps, one.learning_rate) == (128, 1000, 5e-6)
    assert (two.batch_size, two.steps, two.learning_rate) == (64, 3300, 3e-7)
    assert (two.beta1, two.beta2) == (0.9, 0.98)
    # appendix B, stand-ins apart
    ratios = {source.name: source.ratio for source in paper.source if source.instead_of is None}
    assert sorted(ratios.values()) == sorted(
        [0.069, 0.09, 0.026, 0.026, 0.09, 0.02, 0.09, 0.02, 0.09, 0.15, 0.08, 0.2, 0.15, 0.03, 0.2]
    )
    # section 4.2
    context = paper.context
    assert (context.passages, context.chunk_words, context.relevant_above, context.irrelevant_below) == (
        5,
        150,
        0.5,
        0.1,
    )


def test_the_bundled_preset_keeps_to_licences_that_allow_redistribution() -> None:
    assert recipe.load("bundled").licences == ("attribution",)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name = ", "not TOML"),
        ('name = "x"', "source: Field required"),
        ('name = "x"\n' + ONE + "extra = 1", "source.0.extra"),
        ('name = "x"\n' + ONE.replace("ratio = 1", "ratio = 0"), "source.0.ratio"),
        ('name = "x"\n' + ONE.replace("context-rich-qa", "poetry"), "source.0.kind"),
        ('name = "x"\n' + ONE + ONE, "more than one is called a"),
        ('name = "x"\n' + ONE + 'instead_of = "b"', "stands in for 'b'"),
        ('name = "x"\n' + ONE + "[context]\npassages = 9\ndepth = 5", "depth must be at least passages"),
        (
            'name = "x"\n' + ONE + "[context]\nseparate = true\nunanswerable = 0.1",
            "separate needs unanswerable = 0",
        ),
        ('name = "x"\n' + ONE + "[stage2]\nsteps = 0", "stage2.steps"),
    ],
)
def test_a_malformed_recipe_is_refused_with_its_field(text: str, said: str) -> None:
    with pytest.raises(RecipeError, match=r"my\.toml") as caught:
        recipe.parse(text, origin="my.toml")
    assert said in str(caught.value)


def test_an_unknown_recipe_names_the_presets() -> None:
    with pytest.raises(RecipeError, match="bundled, documentation, gpu, laptop, paper"):
        recipe.load("/nowhere.toml")


def test_a_stage_that_is_not_there_is_reported() -> None:
    with pytest.raises(RecipeError, match=r"has no \[stage1\]"):
        recipe.parse('name = "x"\n' + ONE, origin="x").stage(1)


def test_the_rate_rises_holds_and_falls() -> None:
    stage = Stage(steps=10, warm_up=4, decay=5)
    assert [stage.factor(step) for step in range(10)] == [
        1 / 4, 2 / 4, 3 / 4, 1, 1, 1, 4 / 5, 3 / 5, 2 / 5, 1 / 5,
    ]  # fmt: skip


def test_without_rise_and_fall_the_rate_is_constant() -> None:
    assert {Stage(steps=3).factor(step) for step in range(3)} == {1.0}


def test_a_kind_can_be_left_out_for_ablations() -> None:
    whole = recipe.load("laptop")
    less = recipe.without(whole, [Kind.RETRIEVAL_AUGMENTED_QA])
    assert {source.kind for source in less.source} == {source.kind for source in whole.source} - {
        Kind.RETRIEVAL_AUGMENTED_QA
    }
    assert less.name == "laptop without retrieval-augmented-qa"
    assert less.context == whole.context
    one = recipe.parse('name = "x"\n' + ONE, origin="x")
    with pytest.raises(RecipeError, match="has no source of the kind retrieval-augmented-ranking"):
        recipe.without(one, [Kind.RETRIEVAL_AUGMENTED_RANKING])
    with pytest.raises(RecipeError, match="x without"):
        recipe.without(one, [source.kind for source in one.source])
