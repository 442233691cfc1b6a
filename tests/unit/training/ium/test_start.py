"""What training begins with, what of it is trained, and how it is kept."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from evenmesh_kit.compute.model_files import ModelError
from evenmesh_reranker import bundled
from evenmesh_reranker.domain import Agent
from evenmesh_reranker.models import token_names, tokens
from evenmesh_reranker.models.manifest import Lineage
from evenmesh_reranker.models.store import ModelStore
from evenmesh_training.ium import session, start
from evenmesh_training.ium.learning import Example, Options, learn
from evenmesh_training.ium.recipe import IumRecipe
from tests.support import tiny_encoders, tiny_models
from tests.support.tiny_models import SENTENCES

ANN = Agent("qa", "ann")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.cross_encoder(tmp_path_factory.mktemp("cross-encoder"))


def test_words_and_low_layers_stay_while_the_agents_tokens_learn(folder: Path) -> None:
    tokenizer, model = start.start(str(folder), [ANN], seed=1, max_length=32)
    start.choose_trained(tokenizer, model, IumRecipe(name="r", frozen_layers=1, frozen_words=True))
    before = {name: one.detach().clone() for name, one in model.named_parameters()}
    examples = [Example(SENTENCES[0], "", text, ANN, float(at % 2)) for at, text in enumerate(SENTENCES)]
    learn(tokenizer, model, examples, Options(batch_size=4, learning_rate=1e-2, max_length=32))
    after = dict(model.named_parameters())
    words = "bert.embeddings.word_embeddings.weight"
    of_agents = tokenizer.convert_tokens_to_ids(["[task:qa]", "[model:ann]"])
    others = [at for at in range(len(tokenizer)) if at not in tokenizer.get_added_vocab().values()]
    assert torch.equal(after[words][others], before[words][others])
    assert bool((after[words][of_agents] != before[words][of_agents]).any(1).all())
    changed = {name for name, one in after.items() if not torch.equal(one, before[name])}
    assert not any(".layer.0." in name or "position" in name for name in changed)
    assert any(".layer.1." in name for name in changed)


def test_layers_that_are_not_there_cannot_be_kept(folder: Path) -> None:
    tokenizer, model = start.start(str(folder), [ANN], seed=1, max_length=32)
    with pytest.raises(ModelError, match="no 9 layers"):
        start.choose_trained(tokenizer, model, IumRecipe(name="r", frozen_layers=9))


def test_a_new_model_knows_its_agents_and_has_their_tokens_alike(tmp_path: Path) -> None:
    tokenizer, model = start.start(start.FRESH, [ANN], seed=4, max_length=100)
    assert {"[task:qa]", "[model:ann]"} <= set(tokens.present(tokenizer))
    assert tokenizer.model_max_length == 100
    words = model.get_input_embeddings().weight
    first, second = tokenizer.convert_tokens_to_ids(["[task:qa]", token_names.UNKNOWN_TASK])
    assert torch.equal(words[first], words[second])
    again = start.start(start.FRESH, [ANN], seed=4, max_length=100)[1].classifier.weight
    assert torch.equal(model.classifier.weight, again)


def test_what_is_saved_is_a_version_that_can_be_kept(folder: Path, tmp_path: Path) -> None:
    tokenizer, model = start.start(str(folder), [ANN], seed=1, max_length=32)
    start.save(tokenizer, model, tmp_path / "model")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    store = ModelStore(tmp_path / "store")
    version = session.store_version(
        store, tmp_path / "model", Lineage("offline-ium round 3", metrics={"utility": 0.5})
    )
    kept, manifest = store.verified(version)
    assert manifest.tokens == tokens.present(tokenizer)
    assert manifest.lineage.metrics == {"utility": 0.5}
    assert start.load(kept)[0].model_max_length == 32


def test_what_learned_is_served_as_the_run_ranked(tmp_path: Path) -> None:
    given = tiny_models.cross_encoder(tmp_path / "given")
    config = json.loads((given / "config.json").read_text())
    config["evenmesh_fusion"] = {"weight": 2.0, "slope": 1.0, "intercept": 0.0}
    (given / "config.json").write_text(json.dumps(config))
    served = tiny_encoders.encoder(given, version="v")
    assert served.fusions.others.weight == 2.0
    start.save(*start.start(str(given), [ANN], seed=1, max_length=32), tmp_path / "begun")
    assert tiny_encoders.encoder(tmp_path / "begun", version="v").fusions.others.weight == 0.0


def test_training_that_begins_with_the_model_that_ships_keeps_how_queries_are_read(tmp_path: Path) -> None:
    start.save(*start.load(bundled.assembled(tmp_path)), tmp_path / "learned")
    assert tiny_encoders.encoder(tmp_path / "learned", version="v1").reads_asking


def test_no_such_model_is_said() -> None:
    with pytest.raises(ModelError, match="no/such"):
        start.start("no/such", [ANN], seed=1, max_length=32)


def test_the_model_that_ships_is_begun_with_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("EVENMESH_HOME", str(tmp_path / "home"))
    tokenizer, model = start.start("bundled", [ANN], seed=1, max_length=100)
    shipped = bundled.assemble(tmp_path / "shipped")
    _, wanted = start.load(shipped)
    assert torch.equal(model.classifier.weight, wanted.classifier.weight)
    assert "[task:qa]" in tokens.present(tokenizer)
    assert start.texts_of("bundled").num_questions > 0


def test_what_the_mesh_is_set_to_does_not_change_the_model_that_ships(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("EVENMESH_RERANKER_CROSS_ENCODER", "no-such-model")
    assert (start.locate("bundled") / "config.json").is_file()
    monkeypatch.setenv("EVENMESH_RERANKER_MAX_WORK", "none")
    with pytest.raises(ModelError, match="EVENMESH_RERANKER_MAX_WORK"):
        start.locate("bundled")
