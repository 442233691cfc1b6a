"""The two-round protocol: choose the user's next turn, and judge a system turn.

Source: GFRC, sections 4.1 and 5, figures 1 to 4.
"""

import re
from dataclasses import dataclass
from typing import Final

from evenmesh_studies.conversations.topics import Topic

MORE: Final = "Can you name a few more?"
"""Follows a useful turn."""

_REFUSAL: Final = re.compile(
    r"(?i)\b(?:i['’]?m|i am) (?:unable|not able|sorry, but i can)"
    r"|\b(?:only|just) a (?:large )?language model\b"
    r"|\bas an ai\b|\boutside (?:of )?my capabilities\b|\bi (?:can['’]?t|cannot) (?:help|assist)\b"
    r"|\btext-based ai\b"
)


@dataclass(frozen=True, slots=True)
class SystemTurn:
    """What a system said, and whether it looks useful, that is names at least one address."""

    text: str
    useful: bool

    @property
    def breakdown(self) -> bool:
        """Whether the user cannot continue: the turn is not useful, and is empty or refuses."""
        return not self.useful and (not self.text.strip() or _REFUSAL.search(self.text) is not None)


def next_turn(topic: Topic, said: list[SystemTurn]) -> str | None:
    """Return the user's next turn; None at the end of the conversation.

    Turns listed in a topic file are used whatever the answers. In the two-round protocol :data:`MORE` follows
    a useful turn, the format, if the topic has one, follows a turn that is not useful, and a breakdown ends
    the conversation.
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
