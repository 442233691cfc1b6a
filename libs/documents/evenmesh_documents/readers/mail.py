"""Mail: one message, its text rather than its HTML."""

import email
from email import policy
from email.message import EmailMessage, MIMEPart
from types import MappingProxyType

from evenmesh_documents.document import Document, Kind
from evenmesh_documents.outline import Outline, clean
from evenmesh_documents.readers import html
from evenmesh_documents.readers.text import paragraphs
from evenmesh_documents.source import Source, decoded


def read(source: Source) -> Document:
    """Read a message; its subject is the title and its sender the author, ``to`` an attribute.

    Attachments are noted and not read.

    Raises:
        UnreadableError: it is too long.
    """
    message = email.message_from_bytes(source.data, policy=policy.default)
    outline = Outline(source.limits.characters)
    body = message.get_body(("plain", "html"))
    if body is not None:
        text = _content(body)
        if body.get_content_subtype() == "html":
            html.walk(html.main_part(html.tree(text)), outline)
        else:
            for paragraph in paragraphs(text):
                outline.add(Kind.PARAGRAPH, paragraph)
    attached = [part.get_filename() or part.get_content_type() for part in message.iter_attachments()]
    notes = (f"attachments are not read: {', '.join(attached)}",) if attached else ()
    to = _header(message, "to")
    date = message.get("date")
    moment = getattr(date, "datetime", None)
    return Document(
        source.address,
        outline.blocks(),
        title=_header(message, "subject"),
        author=_header(message, "from"),
        date=moment.date().isoformat() if moment is not None else "",
        links=outline.links,
        attributes=MappingProxyType({"to": to} if to else {}),
        notes=notes,
    )


def _content(body: MIMEPart) -> str:
    """Return the text of a part, whatever encoding it names."""
    try:
        return str(body.get_content())
    except (LookupError, UnicodeError):
        data = body.get_payload(decode=True)
        return decoded(data) if isinstance(data, bytes) else ""


def _header(message: EmailMessage, name: str) -> str:
    return " ".join(clean(str(message.get(name, ""))).split())
