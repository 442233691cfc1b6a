"""The pointer model: an encoder–decoder whose output mixes the vocabulary with the source tokens.

Pointer-generator mixture after See, Liu, Manning (ACL 2017), equation 9, with ``g = 1 - p_gen``;
several passages are read as in Fusion-in-Decoder (Izacard, Grave, EACL 2021): each (question,
passage) pair is encoded alone, the decoder attends to the concatenation.

Shapes: B batch, P passages, L tokens of a pair, S = P·L source tokens, T decoder steps,
H hidden size, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import (
    AttentionInterface,
    BertConfig,
    DynamicCache,
    EncoderDecoderCache,
    PreTrainedModel,
)
from transformers.generation.utils import GenerationMixin
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_outputs import Seq2SeqLMOutput
from transformers.models.bert.modeling_bert import BertEmbeddings, BertLayer
from transformers.utils.generic import ModelOutput

from evenmesh_generator.pointer.configuration import ATTENTION, PointerConfig
from evenmesh_generator.pointer.mixture import Mixture, apply_abstention_bias


def attention_in_float32(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
) -> tuple[Tensor, None]:
    """Compute scaled dot-product attention in float32, whatever the type of the projections.

    Under bfloat16 autocast the CPU kernel's float32 backward takes two thirds of the bfloat16
    one's time (measured at 48 × 192 tokens, heads of 32), and rounds less.
    """
    with torch.autocast(query.device.type, enabled=False):
        output, _ = sdpa_attention_forward(
            module, query.float(), key.float(), value.float(), attention_mask, **kwargs
        )
    return output.to(value.dtype), None


AttentionInterface.register(ATTENTION, attention_in_float32)

CrossProjections = list[tuple[Tensor, Tensor]]


@dataclass
class PointerSource(ModelOutput):
    """What the decoder reads: the encoded source and the tokens it may copy.

    ``last_hidden_state`` [B, S, H]; ``source_ids`` [B, S] token ids; ``source_mask`` [B, S] bool,
    False on padding; ``copy_keys`` [B, S, H] keys of the copy attention, projected once.
    """

    # ModelOutput allows one field without a default; all four are always set.
    last_hidden_state: Tensor = None  # type: ignore[assignment]
    source_ids: Tensor = None  # type: ignore[assignment]
    source_mask: Tensor = None  # type: ignore[assignment]
    copy_keys: Tensor = None  # type: ignore[assignment]


def _layers(bert: BertConfig) -> nn.ModuleList:
    count = bert.num_hidden_layers
    return nn.ModuleList(BertLayer(bert, layer_idx=i) for i in range(count))  # type: ignore[no-untyped-call]


class FusionEncoder(nn.Module):
    """Encodes (question, passage) pairs one by one and lays the passages of a question side by side."""

    main_input_name = "input_ids"

    def __init__(self, config: PointerConfig) -> None:
        super().__init__()
        bert = config.bert(decoder=False)
        self.embeddings = BertEmbeddings(bert)  # type: ignore[no-untyped-call]
        self.layers = _layers(bert)
        self.copy_key = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        **_: Any,
    ) -> PointerSource:
        """Encode ``input_ids`` [B, L] or [B, P, L] (mask and types alike) into a source of S = P·L."""
        batch = input_ids.shape[0]
        length = input_ids.shape[-1]
        pairs = input_ids.reshape(-1, length)
        mask = torch.ones_like(pairs) if attention_mask is None else attention_mask.reshape(-1, length)
        mask = mask.bool()
        types = None if token_type_ids is None else token_type_ids.reshape(-1, length)
        # A passage slot may be all padding (fewer passages than P): leave one key open, or softmax is 0/0.
        visible = mask.clone()
        visible[:, 0] = True
        attention = None if bool(visible.all()) else visible[:, None, None, :].expand(-1, 1, length, -1)
        hidden = self.embeddings(input_ids=pairs, token_type_ids=types)
        if torch.is_autocast_enabled("cpu") and hidden.device.type == "cpu":
            hidden = hidden.to(torch.get_autocast_dtype("cpu"))  # keeps the residual stream in one type
        for layer in self.layers:
            hidden = layer(hidden, attention)
        return PointerSource(
            last_hidden_state=hidden.reshape(batch, -1, hidden.shape[-1]),
            source_ids=pairs.reshape(batch, -1),
            source_mask=mask.reshape(batch, -1),
            copy_keys=self.copy_key(hidden).reshape(batch, -1, hidden.shape[-1]),
        )


class PointerDecoder(nn.Module):
    """Causal decoder over its own tokens and the source; word and position embeddings are the encoder's."""

    def __init__(self, config: PointerConfig) -> None:
        super().__init__()
        bert = config.bert(decoder=True)
        self.config = config
        self.task_embeddings = nn.Embedding(2, config.hidden_size)
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.layers = _layers(bert)

    def forward(
        self,
        token_ids: Tensor,
        embeddings: BertEmbeddings,
        source: PointerSource,
        cache: EncoderDecoderCache | None = None,
    ) -> Tensor:
        """Return the states [B, T, H] for ``token_ids`` [B, T] that follow what ``cache`` already holds."""
        past = int(cache.get_seq_length()) if cache is not None else 0
        steps = token_ids.shape[1]
        positions = torch.arange(past, past + steps, device=token_ids.device)
        hidden = embeddings.word_embeddings(token_ids) + embeddings.position_embeddings(positions)
        hidden = hidden + embeddings.token_type_embeddings.weight[0]
        for task, start in enumerate((self.config.answer_token_id, self.config.relevance_token_id)):
            hidden = hidden + (token_ids == start).unsqueeze(-1) * self.task_embeddings.weight[task]
        hidden = self.norm(hidden)
        if torch.is_autocast_enabled("cpu") and hidden.device.type == "cpu":
            hidden = hidden.to(torch.get_autocast_dtype("cpu"))
        mask = source.source_mask[:, None, None, :].expand(-1, 1, steps, -1)
        for layer in self.layers:
            hidden = layer(
                hidden,
                encoder_hidden_states=source.last_hidden_state,
                encoder_attention_mask=mask,
                past_key_values=cache,
            )
        return cast("Tensor", hidden)

    def project(self, hidden: Tensor) -> CrossProjections:
        """Return every layer's cross-attention keys and values [B, heads, S, H/heads] for ``hidden`` [B, S,
        H].
        """
        shape = (*hidden.shape[:-1], self.config.num_attention_heads, -1)
        attentions = [cast("BertLayer", layer).crossattention.self for layer in self.layers]
        return [
            (
                attention.key(hidden).view(shape).transpose(1, 2),
                attention.value(hidden).view(shape).transpose(1, 2),
            )
            for attention in attentions
        ]


class PointerHead(nn.Module):
    """Turns decoder states into the mixture of generating and copying."""

    def __init__(self, config: PointerConfig) -> None:
        super().__init__()
        size = config.hidden_size
        self.transform = nn.Linear(size, size)
        self.norm = nn.LayerNorm(size, eps=config.layer_norm_eps)
        self.vocab_bias = nn.Parameter(torch.zeros(config.vocab_size))
        self.copy_query = nn.Linear(size, size)
        self.successor = nn.Linear(size, 1)
        self.gate = nn.Linear(2 * size, 1)

    def forward(
        self, states: Tensor, token_ids: Tensor, source: PointerSource, word_embeddings: Tensor
    ) -> Mixture:
        """Return the mixture [B, T, …] after ``states`` [B, T, H], whose inputs were ``token_ids`` [B, T]."""
        copy_probs, gate_logit = self.copy(states, token_ids, source)
        return Mixture(self.vocab_logits(states, word_embeddings), copy_probs, gate_logit)

    def vocab_logits(self, states: Tensor, word_embeddings: Tensor) -> Tensor:
        """Return scores [..., V] of the vocabulary: a transform, then the frozen embedding as output
        projection.
        """
        hidden = self.norm(functional.gelu(self.transform(states)))
        return functional.linear(hidden, word_embeddings.to(hidden.dtype)).float() + self.vocab_bias.float()

    def copy(self, states: Tensor, token_ids: Tensor, source: PointerSource) -> tuple[Tensor, Tensor]:
        """Return copy probabilities [B, T, S] and the logit of g [B, T], in float32."""
        with torch.autocast(states.device.type, enabled=False):
            states = states.float()
            query = functional.linear(states, self.copy_query.weight.float(), self.copy_query.bias.float())
            scores = query @ source.copy_keys.float().transpose(1, 2) * states.shape[-1] ** -0.5
            # A copied span goes on: favour the source token that follows an occurrence of the last output.
            before = functional.pad(source.source_ids[:, :-1], (1, 0), value=-1)
            follows = before[:, None, :] == token_ids[:, :, None]
            favour = functional.linear(states, self.successor.weight.float(), self.successor.bias.float())
            scores = (scores + favour * follows).masked_fill(~source.source_mask[:, None, :], float("-inf"))
            probs = scores.softmax(-1)
            context = probs @ source.last_hidden_state.float()
            gate = functional.linear(
                torch.cat([states, context], -1), self.gate.weight.float(), self.gate.bias.float()
            )
            return probs, gate.squeeze(-1)


class PointerForConditionalGeneration(PreTrainedModel, GenerationMixin):  # type: ignore[no-untyped-call]
    """Answers a question from passages, or judges one passage, by the decoder's start token.

    Start token ``config.answer_token_id``: the answer's word pieces, then ``eos``. Start token
    ``config.relevance_token_id``: ``true`` or ``false``. The logits are the logarithm of the mixture,
    already normalised, so that log-softmax (beam search) leaves them as they are.
    """

    config_class = PointerConfig
    base_model_prefix = "pointer"
    main_input_name = "input_ids"
    _supports_sdpa = True

    def __init__(self, config: PointerConfig) -> None:
        super().__init__(config)
        self.encoder = FusionEncoder(config)
        self.decoder = PointerDecoder(config)
        self.head = PointerHead(config)
        self.post_init()  # type: ignore[no-untyped-call]
        for frozen in (self.encoder.embeddings, *self.encoder.layers[: config.frozen_layers]):
            frozen.requires_grad_(False)

    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)  # type: ignore[no-untyped-call]
        if isinstance(module, PointerDecoder):
            nn.init.zeros_(module.task_embeddings.weight)
        elif isinstance(module, PointerHead):
            nn.init.zeros_(module.vocab_bias)
            nn.init.zeros_(module.successor.weight)
            nn.init.ones_(module.successor.bias)

    def get_encoder(self, modality: str | None = None) -> FusionEncoder:
        """Return the encoder ``generate`` calls once per question."""
        return self.encoder

    def get_input_embeddings(self) -> nn.Embedding:
        """Return the frozen word embeddings, also the output projection."""
        return self.encoder.embeddings.word_embeddings

    def get_output_embeddings(self) -> None:
        """Return None: the output projection is the input embedding itself."""

    def select(
        self, source: PointerSource, cross: CrossProjections, rows: Tensor | None
    ) -> tuple[PointerSource, EncoderDecoderCache]:
        """Return source and cache of ``rows``: [B] one pair each, [B, P] several side by side, None all
        pairs.

        Lets pairs that were encoded once serve several decodings: ``source`` [N, L, …] and
        ``cross`` = ``decoder.project(source.last_hidden_state)`` become [B, P·L, …].
        """
        if rows is not None:
            size = len(rows)
            flat = rows.reshape(-1)

            def beside(values: Tensor) -> Tensor:
                return values.index_select(0, flat).reshape(size, -1, *values.shape[2:])

            source = PointerSource(**{name: beside(values) for name, values in source.items()})
            cross = [
                (beside(keys.transpose(1, 2)).transpose(1, 2), beside(values.transpose(1, 2)).transpose(1, 2))
                for keys, values in cross
            ]
        cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
        for index, (keys, values) in enumerate(cross):
            cache.cross_attention_cache.update(keys, values, index)
            cache.is_updated[index] = True
        return source, cache

    def sequence_log_probs(
        self,
        token_ids: Tensor,
        targets: Tensor,
        source: PointerSource,
        cache: EncoderDecoderCache | None = None,
    ) -> Tensor:
        """Return log P(target) of every non-negative target, row by row, as one flat tensor.

        Without the leaning of :func:`lean`: what is learnt is not bent. ``token_ids`` and ``targets``
        [B, T]: decoder inputs and what should follow each; a negative target (padding) costs no vocabulary
        projection.
        """
        states = self.decoder(token_ids, self.encoder.embeddings, source, cache)
        copy_probs, gate_logit = self.head.copy(states, token_ids, source)
        rows, steps = (targets >= 0).nonzero(as_tuple=True)
        vocab_logits = self.head.vocab_logits(states[rows, steps], self.get_input_embeddings().weight)
        mixture = Mixture(vocab_logits, copy_probs[rows, steps], gate_logit[rows, steps])
        return mixture.target_log_probs(source.source_ids[rows], targets[rows, steps])

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        encoder_outputs: PointerSource | Sequence[Tensor] | None = None,
        past_key_values: EncoderDecoderCache | None = None,
        use_cache: bool | None = None,
        **_: Any,
    ) -> Seq2SeqLMOutput:
        """Return the log-probabilities [B, T, V] of what follows each of ``decoder_input_ids`` [B, T], as
        answers need.

        Either ``input_ids`` ([B, L] or [B, P, L]) or ``encoder_outputs`` from :meth:`get_encoder`.

        Raises:
            ValueError: neither is given, or no ``decoder_input_ids``.
        """
        if encoder_outputs is None:
            if input_ids is None:
                raise ValueError("give input_ids or encoder_outputs")
            encoder_outputs = self.encoder(input_ids, attention_mask, token_type_ids)
        if decoder_input_ids is None:
            raise ValueError("give decoder_input_ids; the start token names the task")
        source = (
            encoder_outputs if isinstance(encoder_outputs, PointerSource) else PointerSource(*encoder_outputs)
        )
        if use_cache and past_key_values is None:
            past_key_values = EncoderDecoderCache(DynamicCache(), DynamicCache())
        states = self.decoder(decoder_input_ids, self.encoder.embeddings, source, past_key_values)
        mixture = self.head(states, decoder_input_ids, source, self.get_input_embeddings().weight)
        return Seq2SeqLMOutput(
            logits=apply_abstention_bias(
                mixture.log_probs(source.source_ids[:, None, :]),
                decoder_input_ids,
                bias=self.config.abstention_bias,
                start=self.config.answer_token_id,
                abstention=self.config.abstention_token_id,
            ),
            past_key_values=past_key_values,
            encoder_last_hidden_state=source.last_hidden_state,
        )
