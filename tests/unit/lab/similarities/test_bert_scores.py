"""BERTScore: that it is the package's, and what keeps the package working."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tokenizers import pre_tokenizers
from transformers import BertConfig, BertModel, RobertaConfig, RobertaModel, RobertaTokenizer

from evenmesh_lab.similarities import MissingModel, Models, load
from evenmesh_lab.similarities.bert_scores import BertScorer


def test_it_is_the_packages_score_of_the_same_layer(tiny_encoder: Path, tmp_path: Path) -> None:
    from bert_score import BERTScorer

    linked = tmp_path / "encoder"
    if "t5" in str(linked):
        pytest.skip("the temporary folder has t5 in its name, which the package itself misreads")
    linked.symlink_to(tiny_encoder)
    pairs = [("the fox", "water boils"), ("play of the prince", "water")]
    ours = load("bert_score", Models(bert_score=str(linked))).pairs(pairs)
    layers = BertScorer(Models(bert_score=str(linked))).layers
    assert layers == max(1, round(0.75 * 2))
    package = BERTScorer(model_type=str(linked), num_layers=layers, device="cpu", nthreads=0)
    theirs = package.score([a for a, _ in map(sorted, pairs)], [b for _, b in map(sorted, pairs)])[2]
    assert ours == pytest.approx(theirs.double().numpy(), abs=1e-6)


def test_real_words_with_the_bundled_encoder() -> None:
    from evenmesh_models import minilm

    scores = load("bert_score", Models(bert_score=str(minilm())))
    matrix = scores.matrix(["Paris", "the city of Paris", "a banana"])
    assert matrix[0, 1] > 0.7 > 0.5 > matrix[0, 2]
    assert np.array_equal(matrix, matrix.T)


def test_a_folder_with_t5_in_its_name_is_not_taken_for_a_t5(tiny_encoder: Path) -> None:
    assert "t5" in str(tiny_encoder)
    encoder = load("bert_score", Models(bert_score=str(tiny_encoder)))
    first, second = (encoder.pairs([("the fox", "water boils")]) for _ in range(2))
    assert np.array_equal(first, second)
    assert 0 < first[0] < 1


def test_an_empty_text_is_like_no_other(tiny_encoder: Path) -> None:
    matrix = load("bert_score", Models(bert_score=str(tiny_encoder))).matrix(["", "water", "  "])
    assert matrix[0].tolist() == [1, 0, 0]
    assert matrix[1].tolist() == [0, 1, 0]


def test_long_texts_are_cut(tiny_encoder: Path) -> None:
    value = load("bert_score", Models(bert_score=str(tiny_encoder))).pairs([("fox " * 500, "water")])
    assert -1 <= value[0] <= 1


def test_the_layers_of_a_known_name_are_the_packages(tmp_path: Path, tiny_encoder: Path) -> None:
    folder = tmp_path / "distilroberta-base"
    folder.mkdir()
    for file in tiny_encoder.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    BertModel(
        BertConfig(
            vocab_size=500, hidden_size=8, num_hidden_layers=6, num_attention_heads=2, intermediate_size=8
        )
    ).save_pretrained(folder)
    assert BertScorer(Models(bert_score=str(folder))).layers == 5


@pytest.fixture
def byte_level(tmp_path: Path) -> Path:
    """A RoBERTa whose tokenizer knows " a" with its space, and no length limit."""
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    vocabulary = {token: at for at, token in enumerate(special + sorted(pre_tokenizers.ByteLevel.alphabet()))}
    vocabulary["Ġa"] = len(vocabulary)
    RobertaTokenizer(vocab=vocabulary, merges=[("Ġ", "a")]).save_pretrained(tmp_path)
    config = RobertaConfig(
        vocab_size=len(vocabulary),
        hidden_size=8,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=8,
        max_position_embeddings=34,
    )
    RobertaModel(config).save_pretrained(tmp_path)
    return tmp_path


def test_byte_level_tokenizers_get_their_first_space_and_a_limit(byte_level: Path) -> None:
    scorer = BertScorer(Models(bert_score=str(byte_level)))
    from bert_score.utils import sent_encode

    tokenizer = scorer._tokenizer
    assert tokenizer.convert_ids_to_tokens(sent_encode(tokenizer, "a")) == ["<s>", "Ġa", "</s>"]
    assert tokenizer.model_max_length == 34 - 2
    assert -1 <= load("bert_score", Models(bert_score=str(byte_level))).pairs([("b " * 99, "a")])[0] <= 1


def test_weights_that_lack_a_layer_are_refused(tiny_encoder: Path, tmp_path: Path) -> None:
    for file in tiny_encoder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = BertConfig.from_pretrained(tmp_path)
    config.num_hidden_layers = 4  # two more than its weights have; three of them would be used
    config.save_pretrained(tmp_path)
    with pytest.raises(MissingModel, match=r"THE_ENCODER: .* its weights lack encoder\.layer\.2"):
        load("bert_score", Models(bert_score=str(tmp_path), called={"bert_score": "THE_ENCODER"})).matrix(
            ["a", "b"]
        )
