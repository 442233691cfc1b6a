"""Tiny language models with random weights, made on the spot, whose outputs depend on what they read.

Made without training, which is not deterministic in ``tokenizers``: the same on every run.

Freshly initialised models are useless for identity tests: a tied T5 emits one token for ever. These get
larger weights, above all where the decoder looks at the encoder, and the builders check that greedy answers
to different prompts differ and change from token to token; of T5's and Llama's some end by themselves.
"""

# ruff: noqa: S106 - tokens, not passwords

from __future__ import annotations

import functools
import hashlib
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Concatenate, ParamSpec

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    BartConfig,
    BartForConditionalGeneration,
    BertConfig,
    BertForSequenceClassification,
    BertPreTrainedModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    T5Config,
    T5ForConditionalGeneration,
)

import evenmesh_models
from evenmesh_generator.pointer.configuration import PointerConfig
from evenmesh_generator.pointer.modeling import PointerForConditionalGeneration
from evenmesh_generator.pointer.reader import PointerReader
from evenmesh_generator.pointer.tokenization import PairTokenizer

SENTENCES = (
    "What is the boiling point of water at sea level?",
    "Water boils at one hundred degrees Celsius; the café in Zürich says 100 °C.",
    "Who wrote the play about the prince of Denmark?",
    "William Shakespeare wrote Hamlet, didn't he? Yes — around 1600.",
    "The quick brown fox jumps over the lazy dog near the river bank.",
    "question: title: context: System: User: Assistant: Passage 1: True False True False",
    "Answer the above question with a short phrase. relevant otherwise access whether passage",
    "Bicycles need oil on the chain, air in the tyres and 😀 on the rider.",
)
"""What tests ask; the tokenizers know its words."""

_KNOWN = (
    *SENTENCES,
    "This is a chat between a user and an artificial intelligence assistant. The assistant gives helpful, detailed,",
    "and polite answers to the user’s questions based on the context. The assistant should also indicate when the",
    "answer cannot be found in the context. For the question access whether the passage is relevant to the question.",
    "Return True if relevant, otherwise False. Assuming the following paragraphs are true: Please directly answer",
    "the following question with one or few words: Generate a background document to answer the given question.",
)
_WORDS = sorted({word for sentence in _KNOWN for word in sentence.split()})
_LETTERS = sorted({letter for sentence in _KNOWN for letter in sentence} - {" "})

_OF_BERT = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")

_CHAT = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


P = ParamSpec("P")


def _made_once(make: Callable[Concatenate[Path, P], Path]) -> Callable[Concatenate[Path, P], Path]:
    """Make a model once per version of this file and its libraries, and copy it from then on.

    Looking for weights whose answers vary takes seconds; all processes of all test runs share what was found.
    """
    versions = f"{torch.__version__} {transformers.__version__}".encode()
    made_by = hashlib.sha256(Path(__file__).read_bytes() + versions).hexdigest()[:16]
    kept = Path(tempfile.gettempdir()) / f"evenmesh-tiny-models-{os.getuid()}" / made_by

    @functools.wraps(make)
    def copied(folder: Path, *args: P.args, **options: P.kwargs) -> Path:
        model = kept / "-".join([make.__name__, *map(str, args), *(f"{k}={v}" for k, v in options.items())])
        if not model.is_dir():
            kept.mkdir(parents=True, exist_ok=True)
            beside = make(kept / f".{secrets.token_hex(8)}", *args, **options)
            try:
                beside.rename(model)
            except OSError:  # another process was faster
                shutil.rmtree(beside)
        shutil.copytree(model, folder, dirs_exist_ok=True)
        return folder

    return copied


@_made_once
def t5(folder: Path) -> Path:
    """A T5 with a Unigram tokenizer, 512 tokens of input."""
    special = ["<pad>", "</s>", "<unk>"]
    pieces = [f"▁{word}" for word in _WORDS] + ["▁", *_LETTERS]
    scores = [(token, 0.0) for token in special] + [(piece, -1.0 - 3.0 / len(piece)) for piece in pieces]
    tokenizer = Tokenizer(models.Unigram(scores, unk_id=2, byte_fallback=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.add_special_tokens(special)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 1)]
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="</s>",
        pad_token="<pad>",
        unk_token="<unk>",
        model_max_length=512,
    )
    config = T5Config(
        vocab_size=tokenizer.get_vocab_size(),
        d_model=32,
        d_kv=8,
        d_ff=64,
        num_layers=2,
        num_decoder_layers=2,
        num_heads=4,
        dropout_rate=0.0,
        pad_token_id=0,
        eos_token_id=1,
        decoder_start_token_id=0,
        feed_forward_proj="gated-gelu",
    )
    return _saved(T5ForConditionalGeneration(config), fast, folder, ends=True)


@_made_once
def bart(folder: Path) -> Path:
    """A BART: byte-level tokenizer, 512 positions, forced first and last token, a length penalty of 2."""
    tokenizer = _byte_level(["<s>", "<pad>", "</s>", "<unk>"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="<pad>", unk_token="<unk>"
    )
    config = BartConfig(
        vocab_size=tokenizer.get_vocab_size(),
        d_model=32,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        max_position_embeddings=512,
        dropout=0.0,
        pad_token_id=1,
        bos_token_id=0,
        eos_token_id=2,
        decoder_start_token_id=2,
    )
    model = BartForConditionalGeneration(config)
    model.generation_config.update(
        forced_bos_token_id=0, forced_eos_token_id=2, length_penalty=2.0, num_beams=4
    )
    return _saved(model, fast, folder, ends=False)


@_made_once
def llama(folder: Path, *, chat: bool = False, head_size: int = 8) -> Path:
    """A Llama: byte-level tokenizer, 1,024 positions, sampling settings as chat models ship."""
    tokenizer = _byte_level(["<s>", "</s>", "<unk>", "<|user|>", "<|assistant|>"])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        chat_template=_CHAT if chat else None,
    )
    config = LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=head_size,
        max_position_embeddings=1024,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=None,
    )
    model = LlamaForCausalLM(config)
    model.generation_config.do_sample = True  # as chat models ship; must not leak into greedy decoding
    model.generation_config.temperature = 0.6
    model.generation_config.top_p = 0.9
    return _saved(model, fast, folder, ends=True)


@_made_once
def cross_encoder(folder: Path) -> Path:
    """A BERT with one logit and a WordPiece tokenizer, 128 positions."""
    letters = sorted({letter.lower() for letter in _LETTERS})
    pieces = [*_OF_BERT, *letters, *(f"##{letter}" for letter in letters)]
    pieces += sorted({word.lower() for word in _WORDS} - set(pieces))
    fast = _word_pieces(pieces, longest=128)
    config = BertConfig(
        vocab_size=len(pieces),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=128,
        num_labels=1,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    model = BertForSequenceClassification(config)
    pairs = fast([SENTENCES[0]] * 8, list(SENTENCES), padding=True, return_tensors="pt")
    _draw(model, 0)
    with torch.no_grad():
        logits = model.eval()(**pairs).logits
        # Scores spread over (0, 1): logits of mean 0 and deviation 1.
        model.classifier.weight.div_(logits.std())
        model.classifier.bias.sub_(logits.mean()).div_(logits.std())
    model.save_pretrained(folder)
    fast.save_pretrained(folder)
    return folder


def bert(folder: Path, kind: type[BertPreTrainedModel], words: Sequence[str], spread: float) -> Path:
    """A BERT of 2 layers of 16 that knows these words, 32 positions; its weights are drawn that wide."""
    pieces = [*_OF_BERT, *words]
    torch.manual_seed(0)
    model = kind(
        BertConfig(
            vocab_size=len(pieces),
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=32,
            max_position_embeddings=32,
        )
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, spread)
    model.save_pretrained(folder)
    _word_pieces(pieces, longest=32).save_pretrained(folder)
    return folder


def classifier(folder: Path, source: Path, labels: dict[int, str]) -> Path:
    """A sequence classifier with these labels, with the configuration and tokenizer of another BERT."""
    torch.manual_seed(len(labels))
    model = BertForSequenceClassification(
        AutoConfig.from_pretrained(source, id2label=labels, num_labels=len(labels))
    )
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0.0, 0.4)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(source).save_pretrained(folder)
    return folder


def _word_pieces(pieces: Sequence[str], *, longest: int) -> PreTrainedTokenizerFast:
    """A BERT's tokenizer of these pieces, of which the special ones come first."""
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_special_tokens(list(_OF_BERT))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        model_max_length=longest,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    )


def pointer() -> PointerReader:
    """A pointer model of two narrow layers with the base package's tokenizer."""
    config = PointerConfig(
        hidden_size=32,
        encoder_layers=2,
        decoder_layers=2,
        frozen_layers=1,
        num_attention_heads=4,
        intermediate_size=64,
        weights_sha256="0123456789abcdef" * 4,
    )
    model = PointerForConditionalGeneration(config)
    draw_pointer(model, 0)
    return PointerReader(model, PairTokenizer(evenmesh_models.minilm()))


def draw_pointer(model: PointerForConditionalGeneration, seed: int) -> None:
    """Give a pointer model weights so large that its outputs differ from token to token."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            drawn = torch.randn(parameter.shape, generator=generator)
            # Small biases and norms near 1: otherwise constants drown what differs between tokens.
            if name.endswith("bias"):
                parameter.copy_(0.1 * drawn)
            elif "norm" in name.lower():
                parameter.copy_(1.0 + 0.1 * drawn)
            else:
                parameter.copy_((1.0 if "embeddings" in name else 0.5) * drawn)


def plain(folder: Path) -> tuple[Any, Any]:
    """The model and tokenizer of a folder as any user of transformers would load them, float32."""
    auto = (
        AutoModelForSeq2SeqLM
        if AutoConfig.from_pretrained(folder).is_encoder_decoder
        else AutoModelForCausalLM
    )
    return auto.from_pretrained(folder, dtype=torch.float32).eval(), AutoTokenizer.from_pretrained(folder)


def _byte_level(special: Sequence[str]) -> Tokenizer:
    """Bytes, and the words of the sentences merged from their first letter on."""
    split = pre_tokenizers.ByteLevel(add_prefix_space=False)
    merges: dict[tuple[str, str], None] = {}
    for sentence in _KNOWN:
        for word, _ in split.pre_tokenize_str(sentence):
            merges.update(((word[:at], word[at]), None) for at in range(1, len(word)))
    pieces = [*special, *sorted(pre_tokenizers.ByteLevel.alphabet()), *("".join(merge) for merge in merges)]
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocabulary, list(merges)))
    tokenizer.pre_tokenizer = split
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(special))
    return tokenizer


def _saved(model: Any, tokenizer: PreTrainedTokenizerFast, folder: Path, *, ends: bool) -> Path:
    """Draws weights until answers vary and, where ``ends``, some of them end by themselves; saves."""
    end = tokenizer.eos_token_id
    for seed in range(100):
        _draw(model, seed)
        rows = [_greedy(model, tokenizer, sentence) for sentence in SENTENCES]
        if ends:
            # Let the end token win where a token would come that is late in some answers.
            late = [token for row in rows for token in row[6:] if all(token not in one[:6] for one in rows)]
            if not late:
                continue
            head = model.get_output_embeddings().weight
            with torch.no_grad():
                head[end] = 1.02 * head[max(late, key=late.count)]
            rows = [_greedy(model, tokenizer, sentence) for sentence in SENTENCES]
            ended = [row for row in rows if row[-1] == end]
            if not 1 <= len(ended) <= 4 or min(map(len, ended)) < 4:
                continue
        if len({tuple(row) for row in rows}) == len(rows) and all(len(set(row)) >= 4 for row in rows):
            model.save_pretrained(folder)
            tokenizer.save_pretrained(folder)
            return folder
    raise AssertionError(f"no weights make the answers of {type(model).__name__} vary")


def _draw(model: Any, seed: int) -> None:
    torch.manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                wide = any(part in name for part in ("shared", "embed", "lm_head", "relative_attention"))
                looks_at_encoder = "EncDecAttention" in name or "encoder_attn" in name
                parameter.normal_(0.0, 1.0 if wide else 0.6 if looks_at_encoder else 0.2)


def _greedy(model: Any, tokenizer: Any, text: str) -> list[int]:
    inputs = tokenizer(text, return_tensors="pt", return_token_type_ids=False)
    with torch.inference_mode():
        out = model.eval().generate(**inputs, do_sample=False, max_new_tokens=16)[0].tolist()
    return out[1:] if model.config.is_encoder_decoder else out[inputs.input_ids.shape[1] :]
