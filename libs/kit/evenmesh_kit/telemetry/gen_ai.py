"""Names of OpenTelemetry's conventions for generative AI, and of its operations.

They are literals because the package that has them as constants (``opentelemetry.semconv._incubating``) is
marked as moved; a test compares the two.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Final

DATA_SOURCE: Final = "gen_ai.data_source.id"
DIMENSION: Final = "gen_ai.embeddings.dimension.count"
INPUT: Final = "gen_ai.input.messages"
OPERATION: Final = "gen_ai.operation.name"
OUTPUT: Final = "gen_ai.output.messages"
PROVIDER: Final = "gen_ai.provider.name"
MAX_TOKENS: Final = "gen_ai.request.max_tokens"
REQUEST_MODEL: Final = "gen_ai.request.model"
SEED: Final = "gen_ai.request.seed"
STREAM: Final = "gen_ai.request.stream"
TEMPERATURE: Final = "gen_ai.request.temperature"
TOP_P: Final = "gen_ai.request.top_p"
FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
RESPONSE_MODEL: Final = "gen_ai.response.model"
FIRST_CHUNK_S: Final = "gen_ai.response.time_to_first_chunk"
DOCUMENTS: Final = "gen_ai.retrieval.documents"
QUERY_TEXT: Final = "gen_ai.retrieval.query.text"
TOKEN_TYPE: Final = "gen_ai.token.type"  # noqa: S105
CACHED_TOKENS: Final = "gen_ai.usage.cache_read.input_tokens"
INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"

EMBEDDINGS: Final = "embeddings"
RETRIEVAL: Final = "retrieval"
TEXT_COMPLETION: Final = "text_completion"


def messages(role: str, texts: Iterable[str]) -> str:
    """Return texts as :data:`INPUT` and :data:`OUTPUT` have them: one message each."""
    return json.dumps([{"role": role, "parts": [{"type": "text", "content": one}]} for one in texts])
