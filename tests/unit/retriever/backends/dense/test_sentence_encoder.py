"""Encoders by name: pooling and prefixes, with a tiny random BERT built here."""

import logging
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import AutoModel, AutoTokenizer, BertConfig, BertModel, PreTrainedTokenizerFast

from evenmesh_kit.compute import cpu_engine
from evenmesh_kit.compute.conversions import Conversions
from evenmesh_kit.compute.cpu_engine import EngineError
from evenmesh_kit.compute.lengths import CPU_ROWS
from evenmesh_retriever.backends.dense import sentence_encoder
from evenmesh_retriever.backends.dense.prefixes import KNOWN_PREFIXES
from evenmesh_retriever.backends.dense.sentence_encoder import Pooling as Pool
from evenmesh_retriever.backends.dense.sentence_encoder import SentenceEncoder
from evenmesh_retriever.ports import CannotStart
from evenmesh_retriever.steps import encoded, finish, in_batches

needs_openvino = pytest.mark.skipif(
    cpu_engine.installed_version() is None, reason="openvino is not installed"
)
WORDS = ["query", "passage", ":", "a", "red", "lamp", "at", "night", "oil", "the", "chain"]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A transformer as Contriever's folder is: no word on pooling or prompts."""
    folder = tmp_path_factory.mktemp("models") / "plain"
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    vocabulary = {piece: number for number, piece in enumerate([*special, *WORDS])}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))  # noqa: S106 - a token
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",  # noqa: S106
        unk_token="[UNK]",  # noqa: S106
        cls_token="[CLS]",  # noqa: S106
        sep_token="[SEP]",  # noqa: S106
        model_max_length=32,
    )
    torch.manual_seed(0)
    model = BertModel(
        BertConfig(
            vocab_size=len(vocabulary),
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=32,
            max_position_embeddings=32,
        )
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape))
    model.save_pretrained(folder)
    fast.save_pretrained(folder)
    return folder


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
    encoder = SentenceEncoder(str(plain), precision="fp32", pooling=pooling)  # type: ignore[arg-type]
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
    prefixed = SentenceEncoder(
        str(plain), precision="fp32", query_prefix="query: ", passage_prefix="passage: "
    )
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
    none = SentenceEncoder(str(folder), precision="fp32", query_prefix="", passage_prefix="")
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
    other = SentenceEncoder(str(tmp_path), precision="fp32", pooling="mean", query_prefix="")
    np.testing.assert_allclose(
        other.encode_query("a lamp"), unit(tokens_of(plain, "a lamp").mean(axis=0)), atol=1e-5
    )


def test_vectors_made_another_way_have_another_fingerprint(plain: Path) -> None:
    made = [
        SentenceEncoder(str(plain)),
        SentenceEncoder(str(plain), pooling="cls"),
        SentenceEncoder(str(plain), query_prefix="query: "),
        SentenceEncoder(str(plain), passage_prefix="query: "),
    ]
    assert len({encoder.fingerprint for encoder in made}) == 4
    assert SentenceEncoder(str(plain), pooling="mean").fingerprint == made[0].fingerprint


def test_bf16_keeps_the_direction(plain: Path) -> None:
    texts = ["a red lamp at night", "oil the chain", "the chain at night", ""]
    exact = SentenceEncoder(str(plain), precision="fp32").encode_passages(texts, lambda _: None)
    rough = SentenceEncoder(str(plain), precision="bf16").encode_passages(texts, lambda _: None)
    assert rough.dtype == np.float32
    assert (exact * rough).sum(axis=1).min() >= 0.999


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Conversions]:
    """Conversions; PyTorch's threads, which an encoder sets for its process, are as before afterwards."""
    threads = torch.get_num_threads()
    yield Conversions(tmp_path / "openvino")
    torch.set_num_threads(threads)


@needs_openvino
@pytest.mark.parametrize("pooling", ["", "cls", "max", "lasttoken"])
def test_openvino_encodes_as_pytorch_does(plain: Path, kept: Conversions, pooling: Pool) -> None:
    texts = ["a red lamp at night", "oil the chain " * 5, "the chain at night", ""]
    exact = SentenceEncoder(str(plain), precision="fp32", pooling=pooling, engine="torch")
    compiled = SentenceEncoder(
        str(plain), precision="fp32", pooling=pooling, engine="openvino", conversions=kept
    )
    assert compiled.fingerprint == exact.fingerprint
    assert compiled.dimension == exact.dimension
    np.testing.assert_allclose(compiled.encode_query(texts[0]), exact.encode_query(texts[0]), atol=1e-5)
    np.testing.assert_allclose(
        compiled.encode_passages(texts, lambda _: None),
        exact.encode_passages(texts, lambda _: None),
        atol=1e-5,
    )


@needs_openvino
def test_a_vector_is_the_same_to_the_bit_in_any_company(plain: Path, kept: Conversions) -> None:
    """In the default number type, unlike PyTorch's, whose batches have one length."""
    compiled = SentenceEncoder(str(plain), engine="openvino", conversions=kept)
    texts = [" ".join(WORDS[at % 7 :][: at + 1]) for at in range(9)]
    together = compiled.encode_passages(texts, lambda _: None)
    for at in (0, 4, 8):
        np.testing.assert_array_equal(compiled.encode_passages([texts[at]], lambda _: None)[0], together[at])


@needs_openvino
def test_the_bundled_encoder_keeps_the_direction_in_openvino(kept: Conversions) -> None:
    texts = [
        "which lamp?",
        "a front lamp " * 100,
        "Bicycles need oil on the chain, and air in the tyres.",
        "?!",
    ]
    exact = SentenceEncoder(precision="fp32", engine="torch").encode_passages(texts, lambda _: None)
    rough = SentenceEncoder(engine="openvino", conversions=kept).encode_passages(texts, lambda _: None)
    assert (exact * rough).sum(axis=1).min() >= 0.999


def test_an_engine_that_is_not_installed_is_named(
    plain: Path, kept: Conversions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu_engine, "installed_version", lambda: None)
    with pytest.raises(CannotStart, match=r"^S='openvino': OpenVINO is not installed"):
        SentenceEncoder(str(plain), engine="openvino", engine_setting="S", conversions=kept)
    by_torch = SentenceEncoder(str(plain), engine="auto", conversions=kept)
    assert by_torch.encode_query("a red lamp").shape == (16,)


def test_what_openvino_cannot_compute_is_pytorchs(
    plain: Path, kept: Conversions, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise EngineError("no such operation")

    monkeypatch.setattr(cpu_engine, "installed_version", lambda: "2026.4.1")
    monkeypatch.setattr(sentence_encoder, "OpenVinoEncoder", fail)
    with caplog.at_level(logging.WARNING):
        found = SentenceEncoder(str(plain), conversions=kept).encode_query("a red lamp")
    np.testing.assert_array_equal(found, SentenceEncoder(str(plain)).encode_query("a red lamp"))
    assert "no such operation" in caplog.text
    with pytest.raises(CannotStart, match=r"^engine='openvino': no such operation$"):
        SentenceEncoder(str(plain), engine="openvino", conversions=kept)


def test_a_model_that_does_not_pool_says_so(plain: Path, tmp_path: Path) -> None:
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding

    tokenizer = Tokenizer.from_file(str(plain / "tokenizer.json"))
    static = StaticEmbedding(tokenizer, embedding_dim=8)
    SentenceTransformer(modules=[static], device="cpu").save(str(tmp_path))
    with pytest.raises(CannotStart, match=r"^S_pooling='cls': this model does not pool token vectors$"):
        SentenceEncoder(str(tmp_path), pooling="cls", setting="S")


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
