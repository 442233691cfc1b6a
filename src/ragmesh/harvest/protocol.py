"""The two-round protocol: what the user says next, and what became of a system turn.

Source: gfrc §4.1 and §5, figures 1 to 4.
"""

import re
from dataclasses import dataclass
from typing import Final

from ragmesh.harvest.topics import Topic

MORE: Final = "Can you name a few more?"
"""What is said after a useful turn."""

_REFUSAL: Final = re.compile(
    r"(?i)\b(?:i['’]?m|i am) (?:unable|not able|sorry, but i can)"
    r"|\b(?:only|just) a (?:large )?language model\b"
    r"|\bas an ai\b|\boutside (?:of )?my capabilities\b|\bi (?:can['’]?t|cannot) (?:help|assist)\b"
    r"|\btext-based ai\b"
)


@dataclass(frozen=True, slots=True)
class Said:
    """A system turn: what it said, and whether it looks useful, that is names at least one address."""

    text: str
    useful: bool

    @property
    def breakdown(self) -> bool:
        """Whether the user cannot go on: it is not useful, and says nothing or refuses."""
        return not self.useful and (not self.text.strip() or _REFUSAL.search(self.text) is not None)


def next_turn(topic: Topic, said: list[Said]) -> str | None:
    """What the user says next; None where the conversation is over.

    Turns that a topic file spells out are said whatever the answers. In the two-round protocol a useful turn
    is met with :data:`MORE`, one that is not with the format again where the topic has one, and a breakdown
    ends the conversation.
    """
    if topic.turns:
        return topic.turns[len(said)] if len(said) < len(topic.turns) else None
    match said:
        case []:
            return f"{topic.question}\nFormat: {topic.format}" if topic.format else topic.question
        case [first] if first.breakdown:
            return None
        case [first] if first.useful or not topic.format:
            return MORE
        case [_]:
            return f'Adhere to the output format I specified:\n"Format: {topic.format}"'
        case _:
            return None
