"""Read sites: single pages, the pages of a sitemap, feeds; by robots.txt, at a rate, and on one host only."""

import gzip
import io
import socket
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urljoin, urlsplit, urlunsplit
from urllib.robotparser import RobotFileParser
from xml.etree.ElementTree import Element

from evenmesh.public_addresses import Address, is_public
from evenmesh_documents.document import MissingError, UnreadableError
from evenmesh_documents.origins import feeds
from evenmesh_documents.origins.archives import is_archive
from evenmesh_documents.origins.found import Found, PathError
from evenmesh_documents.readers import reader_of
from evenmesh_documents.source import Fetch, held

if TYPE_CHECKING:
    import httpx

AGENT: Final = "evenmesh"
"""Name by which robots.txt may speak of us."""
MAX_REDIRECTS: Final = 5
MAX_SITEMAPS: Final = 1_000
MAX_SITEMAP_BYTES: Final = 50 << 20
"""Largest sitemap, unpacked, as sitemaps.org has it."""
MAX_PAGES: Final = 50_000
"""Most pages of one address."""
MAX_ADDRESS: Final = 2_000
"""Longest address of a page. Characters."""

_AGENT: Final = "evenmesh/0.2 (documents for retrieval-augmented generation)"
_ROBOTS_BYTES: Final = 512 << 10
_PAGE_S: Final = 60.0
_MOST_DELAY_S: Final = 60.0
_CHUNK: Final = 1 << 16
_KINDS: Final = {"text/html": ".html", "application/xhtml+xml": ".xhtml", "text/plain": ".txt"}
_XML: Final = (
    *("application/xml", "text/xml", "application/x-gzip", "application/gzip"),
    *("application/rss+xml", "application/atom+xml", "application/rdf+xml"),
)
_XML_ENDINGS: Final = (".xml", ".xml.gz", ".rss", ".atom", ".rdf")
_FORBIDDEN: Final = ["User-agent: *", "Disallow: /"]
_GONE: Final = (404, 410)

Resolver = Callable[[str, int], Sequence[Address]]


@dataclass(frozen=True, slots=True)
class SiteOptions:
    """How sites are read.

    Attributes:
        interval_s: least time between two requests to a host; a longer Crawl-delay of robots.txt counts, up
            to 60 s. Seconds, [0, 60].
        allow_private: whether hosts may be at addresses that are not public.
    """

    interval_s: float = 1.0
    allow_private: bool = False


def resolve(host: str, port: int) -> Sequence[Address]:
    """Return the addresses of a host. Raises OSError when there is none."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [ip_address(str(entry[4][0]).partition("%")[0]) for entry in found]


def find_site(url: str, options: SiteOptions, resolver: Resolver = resolve) -> Iterator[Found]:
    """Yield the page at an address, the pages that the sitemap there lists, or the entries of the feed there.

    Addresses are URLs. Pages of other hosts, and those that robots.txt forbids, are named and not fetched. A
    page is fetched when its bytes are asked for; one that is not there any more raises :class:`MissingError`.
    Of an entry the feed has all that is read; entries that lead elsewhere are named and not read.

    Args:
        url: of a page, a sitemap, an index of sitemaps, or a feed (RSS, Atom); http or https.
        options: how sites are read.
        resolver: looks names up.

    Raises:
        PathError: what is there cannot be fetched, is neither page nor sitemap, or lists too many pages.
    """
    try:
        import httpx
    except ModuleNotFoundError as exc:
        raise PathError(f"{url}: needs httpx, which is not installed: pip install httpx") from exc
    host = _host(url)
    if not host:
        raise PathError(f"{url}: is not an http or https address")
    transport: httpx.BaseTransport = httpx.HTTPTransport(
        trust_env=False, limits=httpx.Limits(max_connections=8, max_keepalive_connections=0)
    )
    if not options.allow_private:
        transport = _public_only(transport, resolver)
    client = httpx.Client(
        transport=transport,
        headers={"user-agent": _AGENT, "accept-encoding": "identity"},
        timeout=_PAGE_S,
        follow_redirects=False,
        trust_env=False,
    )
    site = _Site(client, host, options.interval_s)
    start = _plain(url)
    try:
        body, kind = site.get(start, MAX_SITEMAP_BYTES)
        root = parsed_sitemap(body) if kind in _XML or _path(start).endswith(_XML_ENDINGS) else None
    except UnreadableError as exc:
        raise PathError(f"{url}: {exc}") from exc
    if root is None:
        ending = _ending(start, kind)
        if not ending:
            raise PathError(f"{url}: is {kind or 'of no stated type'}, neither page, sitemap nor feed")
        yield Found(Path(start), start, fetch=held(body), held=True, ending=ending)
        return
    if _name(root) in feeds.ROOTS:
        yield from _entries(site, start, body)
        return
    yield from _listed(site, url, root)


def _entries(site: "_Site", start: str, body: bytes) -> Iterator[Found]:
    """Yield the entries of a feed, the first of each address."""
    found: dict[str, Found] = {}
    try:
        for one in feeds.entries_of(body):
            address = f"{start}#{quote(one.id, safe='')}"[:MAX_ADDRESS]
            if one.link.isprintable() and 0 < len(one.link) <= MAX_ADDRESS:
                address = _plain(urljoin(start, one.link))
            reason = site.refusal(address)
            if not reason:
                made = Found(
                    Path(address), address, fetch=held(one.page), held=True, ending=".html", stamp=one.stamp
                )
            else:
                made = Found(Path(address), address, reason)
            found.setdefault(address, made)
    except UnreadableError as exc:
        raise PathError(f"{start}: {exc}") from exc
    for address in sorted(found):
        yield found[address]


def _listed(site: "_Site", url: str, root: Element) -> Iterator[Found]:
    """Yield the pages of a sitemap, or of the sitemaps of an index."""
    pages: dict[str, str] = {}
    sitemaps: list[str] = []
    try:
        match _name(root):
            case "urlset":
                _collect(root, pages)
            case "sitemapindex":
                sitemaps = [one for one, _ in entries_of(root, "sitemap")]
                if len(sitemaps) > MAX_SITEMAPS:
                    raise UnreadableError(
                        f"lists {len(sitemaps):,} sitemaps, at most {MAX_SITEMAPS:,} are read"
                    )
            case _:
                raise UnreadableError("is neither page, sitemap nor feed")
        for one in sitemaps:
            found = parsed_sitemap(site.get(one, MAX_SITEMAP_BYTES)[0])
            if _name(found) != "urlset":
                raise UnreadableError("lists something that is not a sitemap")
            _collect(found, pages)
    except UnreadableError as exc:
        # A part of a list is no list: whoever syncs would take the pages of the rest as missing.
        raise PathError(f"{url}: {exc}") from exc
    for address, stamp in sorted(pages.items()):
        reason = site.refusal(address)
        if reason:
            yield Found(Path(address), address, reason)
        else:
            yield Found(
                Path(address),
                address,
                fetch=site.fetcher(address),
                stamp=stamp,
                ending=_ending(address, "text/html"),
            )


@dataclass(slots=True)
class _Site:
    """One host: its robots.txt, and the pace at which it is asked; used by several threads."""

    client: "httpx.Client"
    host: str
    interval_s: float
    _robots: RobotFileParser | None = None
    _next: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _robots_lock: threading.Lock = field(default_factory=threading.Lock)

    def refusal(self, address: str) -> str:
        """Return why a page is not fetched; empty if it may be."""
        if _host(address) != self.host:
            return "is of another host"
        if not self.robots(address).can_fetch(AGENT, address):
            return "is forbidden by robots.txt"
        return ""

    def robots(self, address: str) -> RobotFileParser:
        """Return what robots.txt says. It allows everything where there is none, and nothing where it fails.

        Raises:
            UnreadableError: the host cannot be reached.
        """
        with self._robots_lock:
            if self._robots is None:
                parts = urlsplit(address)
                rules = RobotFileParser()
                where = urlunsplit((parts.scheme, parts.netloc, "/robots.txt", "", ""))
                rules.parse(self._robots_lines(where))
                delay = rules.crawl_delay(AGENT)
                self.interval_s = max(self.interval_s, min(float(delay or 0), _MOST_DELAY_S))
                self._robots = rules
            return self._robots

    def _robots_lines(self, address: str) -> list[str]:
        """Return what robots.txt says, by RFC 9309: everything is forbidden where the server fails."""
        for _ in range(MAX_REDIRECTS + 1):
            with self._asked(address) as response:
                if response.has_redirect_location:
                    address = _plain(urljoin(address, response.headers["location"]))
                    if _host(address) != self.host:
                        break
                elif response.is_success:
                    return _bytes(response, _ROBOTS_BYTES, cut=True).decode(errors="replace").splitlines()
                elif response.is_server_error:
                    return _FORBIDDEN
                else:
                    break
        return []

    def get(self, address: str, most: int) -> tuple[bytes, str]:
        """Return the bytes and the content type of a page, after redirects within the host.

        Raises:
            MissingError: it is not there (404, 410).
            UnreadableError: it cannot be had, is elsewhere, or has more than ``most`` bytes.
        """
        for _ in range(MAX_REDIRECTS + 1):
            if reason := self.refusal(address):
                raise UnreadableError(reason)
            with self._asked(address) as response:
                if response.has_redirect_location:
                    address = _plain(urljoin(address, response.headers["location"]))
                    continue
                if response.status_code in _GONE:
                    raise MissingError(f"is not there (status {response.status_code})")
                if not response.is_success:
                    raise UnreadableError(f"cannot be fetched (status {response.status_code})")
                if response.headers.get("content-encoding", "identity").strip().lower() != "identity":
                    raise UnreadableError("is compressed though it was asked not to be")
                kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
                return _bytes(response, most), kind
        raise UnreadableError("redirects too often")

    def fetcher(self, address: str) -> Fetch:
        """Return what fetches a page."""

        def fetch(most: int) -> bytes:
            body, kind = self.get(address, most)
            if reader_of(_path(address)) is None and not is_archive(_path(address)) and kind not in _KINDS:
                raise UnreadableError(f"is {kind or 'of no stated type'}, no page")
            return body

        return fetch

    @contextmanager
    def _asked(self, address: str) -> Iterator["httpx.Response"]:
        """Ask for a page once it is our turn.

        Raises:
            UnreadableError: the host cannot be reached.
        """
        import httpx

        with self._lock:
            now = time.monotonic()
            turn = max(now, self._next)
            self._next = turn + self.interval_s
        if turn > now:
            time.sleep(turn - now)
        try:
            with self.client.stream("GET", address) as response:
                yield response
        except _PrivateAddressError as exc:
            raise UnreadableError("is at no public address; --allow-private reads it") from exc
        except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as exc:
            raise UnreadableError(f"cannot be reached ({type(exc).__name__})") from exc


def _bytes(response: "httpx.Response", most: int, *, cut: bool = False) -> bytes:
    """Return the body of a response, at most so much of it, within the time for a page."""
    ends = time.monotonic() + _PAGE_S
    body = bytearray()
    for part in response.iter_raw(_CHUNK):
        body += part
        if len(body) > most:
            if cut:
                return bytes(body[:most])
            raise UnreadableError(f"has more than {most:,} bytes")
        if time.monotonic() > ends:
            raise UnreadableError(f"takes longer than {_PAGE_S:g} s to fetch")
    return bytes(body)


def parsed_sitemap(data: bytes) -> Element:
    """Return the root of a sitemap, packed or not.

    Raises:
        UnreadableError: it is no XML, declares a document type, or unpacks to too much.
    """
    from xml.etree.ElementTree import ParseError

    from defusedxml.common import DefusedXmlException
    from defusedxml.ElementTree import fromstring

    if data.startswith(b"\x1f\x8b"):
        try:
            with gzip.GzipFile(fileobj=io.BytesIO(data)) as stream:
                data = stream.read(MAX_SITEMAP_BYTES + 1)
        except (OSError, EOFError, ValueError, zlib.error) as exc:
            raise UnreadableError("is not a sitemap: it cannot be unpacked") from exc
        if len(data) > MAX_SITEMAP_BYTES:
            raise UnreadableError(f"unpacks to more than {MAX_SITEMAP_BYTES:,} bytes")
    try:
        root: Element = fromstring(data, forbid_dtd=True)
    except (ParseError, DefusedXmlException, ValueError, LookupError, RecursionError) as exc:
        raise UnreadableError("is not a sitemap: it is not XML, or declares a document type") from exc
    return root


def _name(element: Element) -> str:
    return str(element.tag).rpartition("}")[2]


def entries_of(root: Element, entry: str) -> Iterator[tuple[str, str]]:
    """Yield address and date of each entry of a sitemap."""
    for one in root:
        if _name(one) != entry:
            continue
        said = {_name(part): (part.text or "").strip() for part in one}
        address = said.get("loc", "")
        if address and len(address) <= MAX_ADDRESS:
            yield _plain(address), said.get("lastmod", "")[:64]


def _collect(root: Element, pages: dict[str, str]) -> None:
    for address, stamp in entries_of(root, "url"):
        pages[address] = stamp
        if len(pages) > MAX_PAGES:
            raise UnreadableError(f"lists more than {MAX_PAGES:,} pages")


def _plain(url: str) -> str:
    """Return an address without fragment, and with a path."""
    try:
        parts = urlsplit(url)
    except ValueError as exc:
        raise UnreadableError("leads to an invalid address") from exc
    return urlunsplit((parts.scheme.lower(), parts.netloc.lower(), parts.path or "/", parts.query, ""))


def _host(url: str) -> str:
    """Return host and port of an address of http or https; empty where it is none, or holds a password."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return ""
    if parts.scheme.lower() not in ("http", "https") or not parts.hostname or parts.username is not None:
        return ""
    return f"{parts.hostname.lower()}:{'' if port in (None, 80, 443) else port}"


def _path(url: str) -> str:
    return urlsplit(url).path.lower()


def _ending(url: str, kind: str) -> str:
    """Return the ending that says how a page is read: its own if there is a reader, else by its type."""
    own = PurePosixPath(_path(url)).suffix
    return own if reader_of(own and f"x{own}") is not None else _KINDS.get(kind, "")


class _PrivateAddressError(Exception):
    """A host is at an address that is not public."""


def _public_only(inner: "httpx.BaseTransport", resolver: Resolver) -> Any:
    """Return a transport that connects to public addresses only.

    A name is looked up here and the connection made to the very address that was checked, so that it cannot
    mean another one by the time it is used.
    """
    import httpx

    class PublicOnly(httpx.BaseTransport):
        def handle_request(self, request: httpx.Request) -> httpx.Response:
            host = request.url.host
            try:
                addresses: Sequence[Address] = [ip_address(host)]
            except ValueError:
                try:
                    port = request.url.port or (443 if request.url.scheme == "https" else 80)
                    addresses = resolver(host, port)
                except (OSError, UnicodeError) as exc:
                    raise httpx.ConnectError("the host has no address", request=request) from exc
            address = next((one for one in addresses if is_public(one)), None)
            if address is None:
                raise _PrivateAddressError
            # The Host header has the name already, and certificates are checked for it, not for the address.
            return inner.handle_request(
                httpx.Request(
                    request.method,
                    request.url.copy_with(host=str(address)),
                    headers=request.headers,
                    stream=request.stream,
                    extensions={**request.extensions, "sni_hostname": host},
                )
            )

        def close(self) -> None:
            inner.close()

    return PublicOnly()
