"""Sites: pages and sitemaps of a local server, by robots.txt, at a pace, on one host, and away from private ones."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address

import pytest

from evenmesh_documents import Parsers, Splitting
from evenmesh_documents.attribution import Attribution
from evenmesh_documents.document import Document, MissingError, UnreadableError
from evenmesh_documents.gathering import Spool, gather
from evenmesh_documents.origins import feeds, sites
from evenmesh_documents.origins.found import Found, PathError
from evenmesh_documents.origins.sites import SiteOptions, find_site

pytest.importorskip("httpx")

HERE = SiteOptions(interval_s=0, allow_private=True)
RSS = """<?xml version="1.0" encoding="utf-8"?>
<rss version="2.0" xmlns:content="http://purl.org/rss/1.0/modules/content/"
  xmlns:dc="http://purl.org/dc/elements/1.1/"><channel><title>Zoo</title><link>{url}/</link>
<item><title>Otters &amp;amp; seals</title><link>{url}/otters</link><guid>1</guid><dc:creator>Ann Ámos</dc:creator>
  <pubDate>Wed, 25 Nov 2026 10:00:00 +0200</pubDate><description>Short.</description>
  <content:encoded><![CDATA[<h2>Hands</h2><p>Otters hold <b>hands</b>.</p><script>x()</script>]]></content:encoded></item>
<item><title>Old news</title><link>{url}/otters</link><description>Said before.</description></item>
<item><title>Elsewhere</title><link>https://elsewhere.example/</link><description>No.</description></item>
<item><title>Closed</title><link>{url}/private/a</link><description>No.</description></item>
<item><title>No link</title><guid isPermaLink="false">n 7</guid><description>Seals &lt;i&gt;sleep&lt;/i&gt;.</description></item>
</channel></rss>"""
ATOM = """<?xml version="1.0" encoding="utf-8"?>
<feed xmlns="http://www.w3.org/2005/Atom"><title>Zoo</title>
<entry><title type="text">1 &lt; 2</title><link href="/a"/><id>urn:a</id><updated>2026-11-24T08:00:00Z</updated>
  <author><name>Ann</name></author><author><name>Bob</name></author><summary>A &lt;b&gt; is no tag.</summary></entry>
</feed>"""
PAGE = b"<html><head><title>Care</title></head><body><main><h1>Chains</h1><p>Oil the chain.</p></main></body></html>"


class Site:
    """A server of this machine: pages by path, and what was asked of it."""

    def __init__(self) -> None:
        self.pages: dict[str, tuple[int, dict[str, str], bytes]] = {}
        self.asked: list[str] = []
        site = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                site.asked.append(self.path)
                status, headers, body = site.pages.get(self.path, (404, {}, b""))
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        self.thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"

    def page(self, path: str, body: bytes = PAGE, kind: str = "text/html; charset=utf-8") -> None:
        self.pages[path] = (200, {"content-type": kind}, body)

    def moved(self, path: str, to: str) -> None:
        self.pages[path] = (301, {"location": to}, b"")

    def sitemap(self, path: str, *addresses: str, entry: str = "url", root: str = "urlset") -> None:
        said = "".join(
            f"<{entry}><loc>{one}</loc><lastmod>2026-11-25</lastmod></{entry}>" for one in addresses
        )
        body = f'<?xml version="1.0"?><{root} xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">{said}</{root}>'
        data = body.encode()
        self.page(path, gzip.compress(data) if path.endswith(".gz") else data, "application/xml")


@pytest.fixture
def site() -> Iterator[Site]:
    made = Site()
    yield made
    made.server.shutdown()
    made.thread.join()
    made.server.server_close()


def bytes_of(one: Found) -> bytes:
    assert one.fetch is not None
    return one.fetch(1 << 20)


def test_a_page_is_read_and_its_address_is_the_citation(site: Site) -> None:
    site.page("/guide/")
    (one,) = find_site(f"{site.url}/guide/#part", HERE)
    assert (one.address, one.ending, bytes_of(one)) == (f"{site.url}/guide/", ".html", PAGE)
    with Spool() as spool, Parsers() as parsers:
        done = gather([one], parsers, spool, splitting=Splitting(), attribution=Attribution())
        (passage,) = spool
    assert done.providers == {"127.0.0.1": 1}
    assert (passage.title, passage.text) == ("Care › Chains", "Oil the chain.")
    assert passage.attributes["document"] == f"{site.url}/guide/"
    assert site.asked == ["/robots.txt", "/guide/"]


def test_the_pages_of_a_sitemap_are_fetched_when_they_are_read(site: Site) -> None:
    for path in ("/a", "/b.pdf"):
        site.page(path, PAGE, "text/html" if path == "/a" else "application/pdf")
    site.sitemap("/sitemap.xml", f"{site.url}/b.pdf", f"{site.url}/a", "https://elsewhere.example/c")
    found = list(find_site(f"{site.url}/sitemap.xml", HERE))
    assert [(one.address, one.ending, one.stamp, one.reason) for one in found] == [
        (f"{site.url}/a", ".html", "2026-11-25", ""),
        (f"{site.url}/b.pdf", ".pdf", "2026-11-25", ""),
        ("https://elsewhere.example/c", "", "", "is of another host"),
    ]
    assert site.asked == ["/robots.txt", "/sitemap.xml"]
    assert bytes_of(found[0]) == PAGE


def test_an_index_of_sitemaps_is_followed_and_a_part_of_it_is_no_list(site: Site) -> None:
    site.sitemap("/one.xml.gz", f"{site.url}/a")
    site.sitemap("/two.xml", f"{site.url}/b")
    site.sitemap(
        "/index.xml", f"{site.url}/one.xml.gz", f"{site.url}/two.xml", entry="sitemap", root="sitemapindex"
    )
    assert [one.address for one in find_site(f"{site.url}/index.xml", HERE)] == [
        f"{site.url}/a",
        f"{site.url}/b",
    ]
    del site.pages["/two.xml"]
    with pytest.raises(PathError, match="is not there"):
        list(find_site(f"{site.url}/index.xml", HERE))


def test_robots_forbids_and_slows(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.page("/robots.txt", b"User-agent: *\nDisallow: /private\nCrawl-delay: 3\n", "text/plain")
    site.page("/a")
    site.sitemap("/sitemap.xml", f"{site.url}/a", f"{site.url}/private/b")
    waits: list[float] = []
    monkeypatch.setattr(sites.time, "monotonic", lambda: sum(waits))
    monkeypatch.setattr(sites.time, "sleep", waits.append)
    found = list(find_site(f"{site.url}/sitemap.xml", SiteOptions(1.0, allow_private=True)))
    assert [one.reason for one in found] == ["", "is forbidden by robots.txt"]
    bytes_of(found[0])
    # A second before what robots.txt says is known; from then on three.
    assert waits == [1.0, 3.0]
    assert "/private/b" not in site.asked


@pytest.mark.parametrize(("status", "allowed"), [(404, True), (403, True), (500, False), (503, False)])
def test_without_robots_all_is_allowed_and_with_a_failing_one_nothing(
    site: Site, status: int, *, allowed: bool
) -> None:
    site.page("/a")
    site.pages["/robots.txt"] = (status, {}, b"")
    if allowed:
        assert len(list(find_site(f"{site.url}/a", HERE))) == 1
    else:
        with pytest.raises(PathError, match="is forbidden by robots"):
            list(find_site(f"{site.url}/a", HERE))


def test_redirects_stay_on_the_host_and_end(site: Site) -> None:
    site.page("/new")
    site.moved("/old", "/new")
    site.moved("/away", "http://elsewhere.example/")
    site.moved("/round", "/round")
    (one,) = find_site(f"{site.url}/old", HERE)
    assert bytes_of(one) == PAGE
    for path, said in (("/away", "is of another host"), ("/round", "redirects too often")):
        with pytest.raises(PathError, match=said):
            list(find_site(f"{site.url}{path}", HERE))


def listed(site: Site, *paths: str) -> list[Found]:
    site.sitemap("/sitemap.xml", *(f"{site.url}{path}" for path in paths))
    return list(find_site(f"{site.url}/sitemap.xml", HERE))


def test_a_page_that_is_gone_differs_from_one_that_fails(site: Site) -> None:
    site.pages["/gone"] = (410, {}, b"")
    site.pages["/broken"] = (500, {}, b"")
    site.page("/data", b"{}", "application/json")
    site.pages["/packed"] = (
        200,
        {"content-type": "text/html", "content-encoding": "gzip"},
        gzip.compress(PAGE),
    )
    site.page("/long", b"x" * ((1 << 20) + 1))
    found = {
        one.address.rpartition("/")[2]: one
        for one in listed(site, "/gone", "/broken", "/data", "/packed", "/long")
    }
    with pytest.raises(MissingError, match="is not there"):
        bytes_of(found["gone"])
    for name, said in {
        "broken": r"cannot be fetched \(status 500\)",
        "data": "is application/json, no page",
        "packed": "is compressed though it was asked not to be",
        "long": "has more than 1,048,576 bytes",
    }.items():
        with pytest.raises(UnreadableError, match=said) as refused:
            bytes_of(found[name])
        assert not isinstance(refused.value, MissingError)


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1", "10.1.2.3", "169.254.169.254", "::1", "::ffff:10.0.0.1", "64:ff9b::a00:1", "fd00::1"],
)
def test_hosts_at_private_addresses_are_never_connected_to(address: str) -> None:
    def resolver(host: str, port: int) -> list[object]:
        return [ip_address(address)]

    with pytest.raises(PathError, match="is at no public address; --allow-private reads it"):
        list(find_site("http://site.example/", SiteOptions(0), resolver))  # type: ignore[arg-type]


def test_an_address_in_the_url_is_checked_too(site: Site) -> None:
    site.page("/")
    with pytest.raises(PathError, match="is at no public address"):
        list(find_site(f"{site.url}/", SiteOptions(0)))
    assert site.asked == []


@pytest.mark.parametrize(
    "url", ["http://", "http:///a", "https://user:secret@e.example/", "http://e.example:x/"]
)
def test_what_is_no_address_is_refused_before_anything_is_asked(url: str) -> None:
    with pytest.raises(PathError, match="is not an http or https address"):
        list(find_site(url, HERE))


BOMB = b'<!DOCTYPE x [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]><urlset><url><loc>&b;</loc></url></urlset>'


@pytest.mark.parametrize(
    "body",
    [b"", b"<urlset>", BOMB, b"<opml/>", gzip.compress(b"x")[:9]],
    ids=["empty", "cut", "bomb", "other", "gzip"],
)
def test_what_is_no_sitemap_is_said(site: Site, body: bytes) -> None:
    site.page("/sitemap.xml", body, "application/xml")
    with pytest.raises(PathError, match=r"not a sitemap|neither page, sitemap nor feed"):
        list(find_site(f"{site.url}/sitemap.xml", HERE))


def bounded(monkeypatch: pytest.MonkeyPatch, name: str, value: int) -> Callable[[], None]:
    monkeypatch.setattr(sites, name, value)
    return monkeypatch.undo


def test_sitemaps_are_bounded(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    bounded(monkeypatch, "MAX_PAGES", 2)
    with pytest.raises(PathError, match="lists more than 2 pages"):
        listed(site, "/a", "/b", "/c")
    bounded(monkeypatch, "MAX_SITEMAP_BYTES", 60)
    site.sitemap("/big.xml.gz", *(f"{site.url}/a" for _ in range(99)))
    with pytest.raises(PathError, match=r"has more than 60 bytes|unpacks to more than 60 bytes"):
        list(find_site(f"{site.url}/big.xml.gz", HERE))


def documents_of(found: list[Found], parsers: Parsers) -> dict[str, Document]:
    """What is read of what was found, by address."""
    read = {}
    for one in found:
        if not one.reason:
            assert one.fetch is not None
            parsed = parsers.read(one.fetch, one.address, one.ending)
            assert parsed.document is not None, parsed.reason
            read[one.address] = parsed.document
    return read


def test_each_entry_of_a_feed_is_a_document(site: Site) -> None:
    pytest.importorskip("feedparser")
    site.page("/robots.txt", b"User-agent: *\nDisallow: /private\n", "text/plain")
    site.page("/news.rss", RSS.format(url=site.url).encode(), "application/rss+xml")
    site.page("/atom", ATOM.encode(), "application/atom+xml; charset=utf-8")
    found = list(find_site(f"{site.url}/news.rss", HERE))
    assert {one.address: one.reason for one in found} == {
        f"{site.url}/otters": "",
        "https://elsewhere.example/": "is of another host",
        f"{site.url}/private/a": "is forbidden by robots.txt",
        f"{site.url}/news.rss#n%207": "",
    }
    with Parsers() as parsers:
        rss = documents_of(found, parsers)
        atom = documents_of(list(find_site(f"{site.url}/atom", HERE)), parsers)
    otters = rss[f"{site.url}/otters"]
    assert (otters.title, otters.author, otters.date) == (
        "Otters & seals",
        "Ann Ámos",
        "2026-11-25T08:00:00+00:00",
    )
    assert [(one.headings, one.text) for one in otters.blocks] == [(("Hands",), "Otters hold hands.")]
    seals = rss[f"{site.url}/news.rss#n%207"]
    assert (seals.title, seals.text) == ("No link", "Seals sleep.")
    (entry,) = atom.values()
    assert list(atom) == [f"{site.url}/a"]
    assert (entry.title, entry.author, entry.date) == ("1 < 2", "Ann, Bob", "2026-11-24T08:00:00+00:00")
    assert entry.text == "A <b> is no tag."
    assert site.asked == ["/robots.txt", "/news.rss", "/robots.txt", "/atom"], "no entry is fetched"


def test_feeds_are_bounded_and_expand_nothing(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("feedparser")
    site.page("/feed.xml", RSS.format(url=site.url).encode(), "text/xml")
    for name, words in (("MAX_ENTRIES", "more than 2 entries"), ("MAX_FEED_BYTES", "more than 2 bytes")):
        with monkeypatch.context() as patch:
            patch.setattr(feeds, name, 2)
            with pytest.raises(PathError, match=words):
                list(find_site(f"{site.url}/feed.xml", HERE))
    laughs = '<?xml version="1.0"?><!DOCTYPE rss [<!ENTITY a "ha">]><rss version="2.0"><channel>&a;</channel></rss>'
    site.page("/laughs", laughs.encode(), "application/rss+xml")
    with pytest.raises(PathError, match="declares a document type"):
        list(find_site(f"{site.url}/laughs", HERE))
    site.page(
        "/none", b'<rss version="2.0"><channel><title>Zoo</title></channel></rss>', "application/rss+xml"
    )
    assert list(find_site(f"{site.url}/none", HERE)) == []
