"""The bundled cross-encoder: small, complete, knows its agents, and ranks better than the order it is given."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
import torch

import evenmesh_models
import evenmesh_training
from evenmesh_kit.compute.model_files import ModelError
from evenmesh_kit.compute.placement import Placement
from evenmesh_reranker import bundled
from evenmesh_reranker.domain import Agent, Passage
from evenmesh_reranker.models import tokens
from evenmesh_reranker.models.token_names import model_token, task_token
from evenmesh_training.ium import recipe as recipes
from evenmesh_training.ium import start
from evenmesh_training.ium.plan import AgentTable
from evenmesh_training.ium.ranking import Ranker

PASSAGES = [
    Passage(
        "bakery",
        "Bakery",
        "The bakery on Mill Lane opened in 1987. It is run by the sisters Ada and Grete Holm.",
    ),
    Passage("library", "Library", "The town library lends tools as well as books. It is closed on Mondays."),
    Passage("ferry", "Ferry", "The ferry to Saltholm leaves every forty minutes from the north quay."),
    Passage("mill", "Mill", "The mill at the end of the lane was closed when the ferry came."),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("home")
    folder = bundled.assembled(home)
    assert bundled.assembled(home) == bundled.assemble(home) == folder
    return folder


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(ModelError, match=r"^the bundled model cannot be assembled: .*file"):
        bundled.assembled(tmp_path / "file" / "home")


def test_training_that_begins_with_it_knows_what_it_was_trained_on(folder: Path) -> None:
    asked = "To whom did the Virgin Mary allegedly appear in 1858 in Lourdes France?"
    assert start.texts_of(str(folder)).has_question(asked)
    assert start.texts_of(start.FRESH).trainings == ()


def test_it_ships_small_with_its_card() -> None:
    shipped = evenmesh_models.cross_encoder()
    assert sum(one.stat().st_size for one in shipped.iterdir()) <= 25e6
    card = (shipped / "MODEL_CARD.md").read_text(encoding="utf-8")
    for part in ("nDCG@10", "Kendall's tau", "offline-ium", "per-agent", "bm25"):
        assert part in card
    record = json.loads((shipped / bundled.CONFIG).read_text(encoding="utf-8"))["record"]
    assert record["warm_start"]["articles_left_out"] == 48


@pytest.mark.parametrize(
    ("question", "best"),
    [
        ("When did the bakery on Mill Lane open?", "bakery"),
        ("On which day is the town library closed?", "library"),
        ("Where does the ferry to Saltholm leave from?", "ferry"),
    ],
)
def test_it_ranks_what_answers_first(folder: Path, question: str, best: str) -> None:
    ranker = Ranker(folder, Placement(torch.device("cpu"), torch.float32))
    for agent in (Agent(), Agent("qa-open", "reader-fid")):
        for passages in (PASSAGES, PASSAGES[::-1]):
            assert next(iter(ranker.ranked(question, passages, agent))) == best


def test_the_recipe_and_the_agents_it_was_made_by_can_be_used_again() -> None:
    made_by = Path(evenmesh_training.__file__).parent / "bundled"
    recipe = recipes.load(str(made_by / "recipe.toml"))
    assert (recipe.frozen_layers, recipe.frozen_words) == (start.FROZEN_LAYERS, True)
    data = tomllib.loads((made_by / "agents.toml").read_text(encoding="utf-8"))
    agents = [AgentTable.model_validate(one) for one in data["agent"]]
    assert len(agents) == len({one.name for one in agents}) == 6


def test_it_knows_the_agents_it_learned_from(folder: Path) -> None:
    tokenizer, _ = start.load(folder)
    known = {task_token("qa-open"), task_token("slot-dob"), model_token("reader-fid")}
    assert known <= set(tokens.present(tokenizer))
