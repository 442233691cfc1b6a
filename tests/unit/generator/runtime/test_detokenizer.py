"""Streamed text is exactly the text of all tokens, whatever the tokenizer."""
# ruff: noqa: S106 - tokens, not passwords

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from evenmesh_generator.runtime.prompts.detokenizer import IncrementalDetokenizer

CORPUS = (
    "The quick brown fox doesn't jump over the lazy dog, does it?",
    "naïve café 😀🎉 über — “quoted” 日本語 . , ! ? a b c d e f g h i j k l m n o p q r s t u v w x y z",
)
BYTES = [f"<0x{value:02X}>" for value in range(256)]


def _byte_level() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        CORPUS,
        trainers.BpeTrainer(
            vocab_size=300, initial_alphabet=alphabet, special_tokens=["</s>"], show_progress=False
        ),
    )
    return tokenizer


def _unigram() -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=120, special_tokens=["</s>", "<unk>"], unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS * 20, trainer)
    return tokenizer


def _byte_fallback() -> Tokenizer:
    """As Llama 2's: pieces with a space before words, bytes for what has no piece."""
    pieces = ["<unk>", "</s>", *BYTES, "▁", *sorted(set(CORPUS[0]) - {" "}), "th", "the", "▁the"]
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    merges = [("t", "h"), ("th", "e"), ("▁", "the")]
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, byte_fallback=True, unk_token="<unk>"))
    tokenizer.add_special_tokens(["</s>"])
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return tokenizer


def _word_piece() -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(cleanup=True)
    tokenizer.train_from_iterator(
        CORPUS,
        trainers.WordPieceTrainer(vocab_size=200, special_tokens=["[UNK]", "[SEP]"], show_progress=False),
    )
    return tokenizer


TOKENIZERS = {
    "byte-level": _byte_level(),
    "unigram": _unigram(),
    "byte-fallback": _byte_fallback(),
    "word-piece": _word_piece(),
}


def _decoder(tokenizer: Tokenizer, *, skip_special_tokens: bool = True) -> Callable[[Sequence[int]], str]:
    return lambda ids: str(tokenizer.decode(list(ids), skip_special_tokens=skip_special_tokens))


def _streamed(ids: Sequence[int], decode: Callable[[Sequence[int]], str]) -> list[str]:
    detokenizer = IncrementalDetokenizer(decode)
    pieces = [detokenizer.push(token) for token in ids]
    pieces.append(detokenizer.finish())
    assert "".join(pieces) == detokenizer.text
    return pieces


@pytest.mark.parametrize("name", TOKENIZERS)
@given(data=st.data())
@settings(max_examples=100, deadline=None)
def test_pieces_join_to_the_text_of_any_tokens(name: str, data: st.DataObject) -> None:
    tokenizer = TOKENIZERS[name]
    ids = data.draw(st.lists(st.sampled_from(_stable_ids(tokenizer)), max_size=20))
    decode = _decoder(tokenizer)
    assert "".join(_streamed(ids, decode)) == decode(ids)


def _stable_ids(tokenizer: Tokenizer) -> list[int]:
    """Tokens whose text no later token takes back; single bytes of a Llama 2 are none (see the last test)."""
    return [index for token, index in tokenizer.get_vocab().items() if token not in BYTES]


@pytest.mark.parametrize("name", TOKENIZERS)
@given(text=st.text(st.sampled_from("".join(CORPUS)), max_size=60))
@settings(max_examples=60, deadline=None)
def test_pieces_join_to_the_text_of_real_text(name: str, text: str) -> None:
    tokenizer = TOKENIZERS[name]
    ids = tokenizer.encode(text).ids
    decode = _decoder(tokenizer)
    assert "".join(_streamed(ids, decode)) == decode(ids)


@pytest.mark.parametrize("name", ["byte-level", "byte-fallback"])
def test_half_a_character_is_held_back(name: str) -> None:
    """U+1F680, the rocket, is four bytes and in no vocabulary here."""
    tokenizer = TOKENIZERS[name]
    decode = _decoder(tokenizer)
    ids = tokenizer.encode("a🚀b").ids
    pieces = _streamed(ids, decode)
    assert "".join(pieces) == decode(ids) == "a🚀b"
    assert "🚀" in pieces, pieces


def test_an_unfinished_character_comes_out_at_the_end() -> None:
    tokenizer = TOKENIZERS["byte-level"]
    ids = tokenizer.encode("🚀").ids[:-1]
    pieces = _streamed(ids, _decoder(tokenizer))
    assert pieces[:-1] == [""] * len(ids)
    assert pieces[-1] == _decoder(tokenizer)(ids) != ""


def test_words_come_out_one_by_one() -> None:
    tokenizer = TOKENIZERS["word-piece"]
    pieces = _streamed(tokenizer.encode("the fox").ids, _decoder(tokenizer))
    assert len([piece for piece in pieces if piece]) >= 2


def test_what_was_given_stands() -> None:
    """A run of byte tokens that becomes invalid takes back its first letters; a stream cannot."""
    tokenizer = TOKENIZERS["byte-fallback"]
    ids = [tokenizer.token_to_id("<0x41>"), tokenizer.token_to_id("<0x80>")]
    decode = _decoder(tokenizer)
    assert decode(ids[:1]) == "A"
    assert decode(ids) == "��"
    assert _streamed(ids, decode) == ["A", "", ""]
