"""Text as the wire can say it."""

from meshkit.errors import InvalidField


def text(field: str, value: str | None) -> str:
    """``value``, or the empty string for None.

    Raises:
        InvalidField: not a string, or one with half a surrogate pair, which UTF-8 cannot say.
    """
    if value is None:
        return ""
    if not isinstance(value, str):
        raise InvalidField(field, f"must be text, not {type(value).__name__}")
    try:
        value.encode()
    except UnicodeEncodeError as exc:
        raise InvalidField(field, f"is not valid Unicode text at character {exc.start + 1}") from exc
    return value
