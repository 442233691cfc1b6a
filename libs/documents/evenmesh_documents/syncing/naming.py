"""Name the passages of a source: their ids say the source and the file, so the collection is the state."""

import re
from collections.abc import Callable, Iterable
from typing import Final

from evenmesh.wire.checks import MAX_ID_BYTES
from evenmesh_documents.document import UnreadableError
from evenmesh_documents.splitting import MAX_ADDRESS, short

MAX_NAME: Final = 32
"""Longest name of a source. Characters."""

_NAME: Final = re.compile(rf"[a-z0-9][a-z0-9_-]{{0,{MAX_NAME - 1}}}")
_OF: Final = ":"
_IN: Final = "#"


def checked_name(name: str) -> str:
    """Return the name of a source.

    Raises:
        ValueError: it cannot be one.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"the name of a source must be 1 to {MAX_NAME} of a-z, 0-9, - and _, "
            "and begin with a letter or digit"
        )
    return name


def prefix_of(source: str) -> str:
    """Return what the ids of all passages of a source begin with."""
    return source + _OF


def file_key(address: str) -> str:
    """Return what stands for a file in ids: its address without ``#``, at most 200 bytes of it."""
    return short(address.replace(_IN, "%23"))


def named(source: str, address: str, own: str) -> str:
    """Return the id of a passage.

    Args:
        source: name of its source.
        address: address of its file.
        own: what tells the passages of the file apart: a hash of the text, or the id that the file states.

    Raises:
        UnreadableError: it is longer than an id may be.
    """
    made = f"{source}{_OF}{file_key(address)}{_IN}{own}"
    if len(made.encode()) > MAX_ID_BYTES:
        raise UnreadableError(
            f"has an id of more than {MAX_ID_BYTES} bytes, with the name of the source and the address"
        )
    return made


def file_of(source: str, passage_id: str) -> str:
    """Return the key of the file that a passage of a source is of."""
    return passage_id.removeprefix(source + _OF).partition(_IN)[0]


def covering(addresses: Iterable[str]) -> Callable[[str], bool]:
    """Return what tells whether the file of a key has one of some addresses, or is in a folder or archive
    that has one. It takes the same time for any number of addresses.

    Of an address that is longer than a key, neighbours with the same beginning count too: whoever asks keeps
    what could not be read, and rather too much of it.
    """
    some = list(addresses)
    if not {"", "."}.isdisjoint(some):
        return lambda _: True
    keys = {file_key(one) for one in some}
    # Cut as a key is: a character on the border is left out.
    within = {
        (one.replace(_IN, "%23").rstrip("/") + "/").encode()[: MAX_ADDRESS - 20].decode(errors="ignore")
        for one in some
    }
    lengths = {len(one) for one in within}
    return lambda key: key in keys or any(key[:length] in within for length in lengths)
