"""Encoders by name: pooling and prefixes, with a tiny random BERT built here."""

from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from tokenizers import Tokenizer
from transformers import AutoModel, AutoTokenizer

from evenmesh_kit.compute.lengths import CPU_ROWS
from evenmesh_retriever.backends.dense.model_options import ModelOptions
from evenmesh_retriever.backends.dense.prefixes import KNOWN_PREFIXES
from evenmesh_retriever.backends.dense.sentence_encoder import SentenceEncoder
from evenmesh_retriever.ports import CannotStart
from evenmesh_retriever.steps import encoded, finish, in_batches


def tokens_of(folder: Path, text: str) -> np.ndarray:
    """The last hidden states of one text, ``[tokens, 16]``."""
    model, tokenizer = AutoModel.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    with torch.inference_mode():
        states: np.ndarray = model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].numpy()
    return states


def unit(vector: np.ndarray) -> np.ndarray:
    return vector / np.linalg.norm(vector)


@pytest.mark.parametrize(
    ("pooling", "expected"),
    [
        ("", lambda states: states.mean(axis=0)),  # the default of a folder that says nothing, Contriever's
        ("mean", lambda states: states.mean(axis=0)),
        ("cls", lambda states: states[0]),
        ("max", lambda states: states.max(axis=0)),
        ("lasttoken", lambda states: states[-1]),
    ],
)
def test_pooling(plain: Path, pooling: str, expected: object) -> None:
    encoder = SentenceEncoder(str(plain), ModelOptions(pooling), precision="fp32")  # type: ignore[arg-type]
    states = tokens_of(plain, "a red lamp at night")
    np.testing.assert_allclose(
        encoder.encode_query("a red lamp at night"),
        unit(expected(states)),  # type: ignore[operator]
        atol=1e-5,
    )
    # In a batch, beside a longer text, padding does not count.
    batch = encoder.encode_passages(["a red lamp at night", "oil the chain " * 5], lambda _: None)
    np.testing.assert_allclose(batch[0], unit(expected(states)), atol=1e-5)  # type: ignore[operator]


def test_prefixes_are_put_before(plain: Path) -> None:
    bare = SentenceEncoder(str(plain), precision="fp32")
    prefixed = SentenceEncoder(str(plain), ModelOptions("", "query: ", "passage: "), precision="fp32")
    np.testing.assert_array_equal(prefixed.encode_query("a red lamp"), bare.encode_query("query: a red lamp"))
    np.testing.assert_array_equal(
        prefixed.encode_passages(["the chain"], lambda _: None),
        bare.encode_passages(["passage: the chain"], lambda _: None),
    )


def test_e5_has_its_prefixes_by_name_and_they_can_be_set(plain: Path, tmp_path: Path) -> None:
    folder = tmp_path / "e5-small-v2"
    folder.symlink_to(plain)
    bare, e5 = SentenceEncoder(str(plain), precision="fp32"), SentenceEncoder(str(folder), precision="fp32")
    np.testing.assert_array_equal(e5.encode_query("a lamp"), bare.encode_query("query: a lamp"))
    none = SentenceEncoder(str(folder), ModelOptions("", "", ""), precision="fp32")
    np.testing.assert_array_equal(none.encode_query("a lamp"), bare.encode_query("a lamp"))
    assert KNOWN_PREFIXES["multilingual-e5-large"] == ("query: ", "passage: ")
    assert "contriever" not in KNOWN_PREFIXES


def test_what_the_folder_says_holds(plain: Path, tmp_path: Path) -> None:
    transformer = Transformer(str(plain))
    model = SentenceTransformer(
        modules=[transformer, Pooling(16, pooling_mode="cls")],
        prompts={"query": "query: ", "document": "passage: "},
        device="cpu",
    )
    model.save(str(tmp_path))
    reported = SentenceEncoder(str(tmp_path), precision="fp32")
    by_hand = unit(tokens_of(plain, "query: a lamp")[0])
    np.testing.assert_allclose(reported.encode_query("a lamp"), by_hand, atol=1e-5)
    other = SentenceEncoder(str(tmp_path), ModelOptions("mean", ""), precision="fp32")
    np.testing.assert_allclose(
        other.encode_query("a lamp"), unit(tokens_of(plain, "a lamp").mean(axis=0)), atol=1e-5
    )


def test_vectors_made_another_way_have_another_fingerprint(plain: Path) -> None:
    made = [
        SentenceEncoder(str(plain)),
        SentenceEncoder(str(plain), ModelOptions("cls")),
        SentenceEncoder(str(plain), ModelOptions(query_prefix="query: ")),
        SentenceEncoder(str(plain), ModelOptions(passage_prefix="query: ")),
    ]
    assert len({encoder.fingerprint for encoder in made}) == 4
    assert SentenceEncoder(str(plain), ModelOptions("mean")).fingerprint == made[0].fingerprint


def test_bf16_keeps_the_direction(plain: Path) -> None:
    texts = ["a red lamp at night", "oil the chain", "the chain at night", ""]
    exact = SentenceEncoder(str(plain), precision="fp32").encode_passages(texts, lambda _: None)
    rough = SentenceEncoder(str(plain), precision="bf16").encode_passages(texts, lambda _: None)
    assert rough.dtype == np.float32
    assert (exact * rough).sum(axis=1).min() >= 0.999


def test_a_model_that_does_not_pool_says_so(plain: Path, tmp_path: Path) -> None:
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding

    tokenizer = Tokenizer.from_file(str(plain / "tokenizer.json"))
    static = StaticEmbedding(tokenizer, embedding_dim=8)
    SentenceTransformer(modules=[static], device="cpu").save(str(tmp_path))
    with pytest.raises(CannotStart, match=r"^S_pooling='cls': this model does not pool token vectors$"):
        SentenceEncoder(str(tmp_path), ModelOptions("cls"), setting="S")


def test_passages_of_a_batch_follow_the_device() -> None:
    """Sixteen on a CPU; without a bound, as many as a quarter million characters with what pads them."""
    texts = [f"{at:03} " + "x" * 60 for at in range(40)] + ["y" * 2**17, "z" * 2**17]
    found: dict[int | None, list[int]] = {}
    for most in (CPU_ROWS, None):
        sizes = found.setdefault(most, [])

        def encode(batch: list[str], sizes: list[int] = sizes) -> list[str]:
            sizes.append(len(batch))
            return batch

        assert in_batches(texts, most, encode, lambda _: None) == texts
        assert finish(encoded(texts, encode, len, most)) == texts
    assert found[CPU_ROWS][:3] == [16, 16, 10]
    assert found[None] == [2, 40, 2, 40]


def test_a_setting_bounds_what_is_encoded_together(plain: Path) -> None:
    encoder = SentenceEncoder(str(plain), precision="fp32", batch=3)
    done: list[int] = []
    encoder.encode_passages(["a", "b b", "c c c", "d", "e"], done.append)
    assert done == [3, 5]


def test_a_required_gpu_that_is_not_there_stops_the_start(
    plain: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(CannotStart, match=r"encoder=.*a GPU is required"):
        SentenceEncoder(str(plain), setting="encoder", require_gpu=True)
