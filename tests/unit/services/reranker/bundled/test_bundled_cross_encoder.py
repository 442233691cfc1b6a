"""The cross-encoder that ships: small, whole, told of its agents, and better than the order it is given."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
import torch

from meshkit.placement import Placement
from services.reranker.bundled import artifact, base
from services.reranker.domain import Agent, Passage
from services.reranker.models import tokens
from services.reranker.models.token_names import model_token, task_token
from services.reranker.training import recipe as recipes
from services.reranker.training import start
from services.reranker.training.plan import AgentTable
from services.reranker.training.ranking import Ranker

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
    return artifact.put_together(tmp_path_factory.mktemp("home"))


def test_it_ships_small_with_its_card() -> None:
    shipped = artifact.folder()
    assert sum(one.stat().st_size for one in shipped.iterdir()) <= 25e6
    card = (shipped / "MODEL_CARD.md").read_text(encoding="utf-8")
    for told in ("nDCG@10", "Kendall's tau", "offline-ium", "per-agent", "bm25"):
        assert told in card
    record = json.loads((shipped / artifact.CONFIG).read_text(encoding="utf-8"))["record"]
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
            assert ranker.ranked(question, passages, agent)[0] == best


def test_the_recipe_and_the_agents_it_was_made_by_can_be_used_again() -> None:
    made_by = artifact.folder().parent
    recipe = recipes.load(str(made_by / "recipe.toml"))
    assert (recipe.frozen_layers, recipe.frozen_words) == (base.FROZEN_LAYERS, True)
    told = tomllib.loads((made_by / "agents.toml").read_text(encoding="utf-8"))
    agents = [AgentTable.model_validate(one) for one in told["agent"]]
    assert len(agents) == len({one.name for one in agents}) == 6


def test_it_knows_the_agents_it_learned_from(folder: Path) -> None:
    tokenizer, _ = start.load(folder)
    known = {task_token("qa-open"), task_token("slot-dob"), model_token("reader-fid")}
    assert known <= set(tokens.present(tokenizer))
