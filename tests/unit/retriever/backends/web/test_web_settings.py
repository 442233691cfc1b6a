"""Settings of web sources, as the retriever reads them."""

from __future__ import annotations

import pytest

from evenmesh_kit.settings import SettingsError, load
from evenmesh_retriever.settings import RetrieverSettings

NAME = "EVENMESH_RETRIEVER_WEB_SOURCES"


def test_sources_are_read_from_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NAME, '{"searx": {"url": "http://searx:8080/", "results": 7, "categories": ["news"]}}')
    source = load(RetrieverSettings).web_sources["searx"]
    assert (str(source.url), source.results, source.categories) == ("http://searx:8080/", 7, ("news",))
    monkeypatch.delenv(NAME)
    assert load(RetrieverSettings).web_sources == {}


@pytest.mark.parametrize(
    ("value", "reported"),
    [
        ("{", f"{NAME}={{: must be valid JSON"),
        ('{"SE": {"url": "http://s"}}', "source 'SE': a name is"),
        ('{"searx": {}}', rf"{NAME}\[searx\]\[url\].*required"),
        ('{"searx": {"url": "file:///etc"}}', rf"{NAME}\[searx\]\[url\].*http"),
        ('{"searx": {"url": "http://s", "results": 0}}', rf"{NAME}\[searx\]\[results\]=0: "),
        ('{"searx": {"url": "http://s", "timeout_s": 0}}', rf"{NAME}\[searx\]\[timeout_s\]=0: "),
        ('{"searx": {"url": "http://s", "language": "x&y=z"}}', rf"{NAME}\[searx\]\[language\]"),
        ('{"searx": {"url": "http://s", "categories": ["a,b"]}}', rf"{NAME}\[searx\]\[categories\]\[0\]"),
        ('{"searx": {"url": "http://s", "no_such": 1}}', rf"{NAME}\[searx\]\[no_such\]=1: "),
    ],
)
def test_a_wrong_value_names_where_it_is(monkeypatch: pytest.MonkeyPatch, value: str, reported: str) -> None:
    monkeypatch.setenv(NAME, value)
    with pytest.raises(SettingsError, match=reported):
        load(RetrieverSettings)
