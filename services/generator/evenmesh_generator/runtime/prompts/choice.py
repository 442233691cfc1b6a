"""Choose the template of a request."""

from __future__ import annotations

from typing import Final

from evenmesh_generator.domain import Augmentation, GenerationRequest
from evenmesh_generator.prompts import Template, TemplateLibrary

CHAT_TEMPLATE: Final = "eor-retrieval-augmented-llama2-chat"
"""The prompt of a model that follows instructions."""
TEXT_TEMPLATE: Final = "rankrag-answer"
"""The prompt of a decoder without a chat template."""
FREE_TEMPLATE: Final = "eor-retrieval-free-llama2-chat"
"""The prompt of a decoder that is shown no passage."""
CONVERSATION_TEMPLATE: Final = "rankrag-answer-conversation"
"""The prompt of passages after earlier turns (Yu et al., 2024, appendix D.2)."""
FREE_CONVERSATION_TEMPLATE: Final = "rankrag-chat"
"""The prompt without a passage after earlier turns (Yu et al., 2024, appendix C.1)."""


class TemplateChooser:
    """Chooses templates for a model.

    Args:
        library: the templates.
        in_prompt: of in-prompt augmentation where neither the request nor ``named`` says one.
        free: of a request without passages that names none.
        named: template that the operator chose for in-prompt augmentation; empty: none. It stays in a
            conversation, too, and shows no earlier turns if it has no place for them.
    """

    def __init__(self, library: TemplateLibrary, *, in_prompt: str, free: str, named: str = "") -> None:
        self._library = library
        self._alone = {
            Augmentation.IN_PROMPT: named or in_prompt,
            Augmentation.FUSION_IN_DECODER: "fusion-in-decoder",
            Augmentation.RETRIEVAL_FREE: free,
        }
        # The papers give Fusion-in-Decoder no prompt with earlier turns.
        self._after_turns = {Augmentation.RETRIEVAL_FREE: FREE_CONVERSATION_TEMPLATE}
        if not named:
            self._after_turns[Augmentation.IN_PROMPT] = CONVERSATION_TEMPLATE

    def of(self, request: GenerationRequest) -> Template:
        """Return the template that the request names, or the default, which need not show earlier turns.

        Raises:
            NotFound: there is no template of that name.
            InvalidField: the request names one that does not suit its augmentation, or has no place for its
                turns.
        """
        augmentation = request.augmentation or Augmentation.IN_PROMPT
        if request.template:
            return self._library.suiting(request.template, augmentation, turns=bool(request.turns))
        template = self._library.suiting(self._alone[augmentation], augmentation)
        if request.turns and not template.shows_turns and augmentation in self._after_turns:
            template = self._library.suiting(self._after_turns[augmentation], augmentation)
        return template
