"""The console in Debian's Chromium: what tests and pictures do with it."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal
from urllib.parse import urlsplit

import pytest

from tests.support.node_tools import axe
from tests.support.programs import required

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page, ViewportSize

PATIENCE_MS: Final = 120_000
"""Longest wait for anything on the page: models share two cores with other tests. Milliseconds."""
MOST_STOPS: Final = 300
"""Most stops of Tab on a page: past them it goes round."""
PAGES: Final = ("ask", "talk", "vote", "collections", "runs", "audits", "statements", "agents", "health")
ARGUMENTS: Final = ("--no-sandbox", "--disable-background-networking", "--disable-component-update")

WIDE: Final[ViewportSize] = {"width": 1280, "height": 900}
"""The window, in CSS pixels."""
NARROW, TALL = 360, 780
"""A phone's."""

Colours = Literal["light", "dark"]
Role = Literal["button", "checkbox", "combobox", "link", "slider", "switch", "textbox"]


@contextmanager
def chromium() -> Iterator[Browser]:
    """Give the browser; skip the test where it or Playwright is not installed."""
    sync_api = pytest.importorskip("playwright.sync_api")
    path = required("chromium")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(ARGUMENTS))
        try:
            yield browser
        finally:
            browser.close()


class ConsolePage:
    """The console on one page of a browser, which notes what should not be.

    Args:
        page: of the browser.
        url: address of the gateway.

    Attributes:
        strangers: requests that left the origin.
        complaints: errors that the page's scripts or its policy raised.
    """

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.url = url
        self.strangers: list[str] = []
        self.complaints: list[str] = []
        page.set_default_timeout(PATIENCE_MS)
        page.on("request", self._requested)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("console", self._said)

    def open(self, name: str) -> None:
        """Open a page of the console by the name in its address."""
        self.page.goto(f"{self.url}/console/#/{name}")
        self.page.locator("main h1").wait_for()

    def ask(self, question: str) -> None:
        """Ask a question and wait until who was shown and the dial are there."""
        self.page.get_by_label("Question", exact=True).fill(question)
        self.page.get_by_role("button", name="Ask", exact=True).click()
        self.page.locator("[data-disparity]").wait_for()
        self.page.get_by_label("Fairness dial", exact=True).wait_for()

    def say(self, words: str, turn: int) -> None:
        """Take a turn of a conversation by the keyboard, and wait until it is measured; ``turn`` counts from 1."""
        self.page.get_by_label("Your turn", exact=True).focus()
        self.page.keyboard.type(words)
        self.page.locator("button:not([disabled])", has_text="Say it").wait_for()
        self.page.keyboard.press("Enter")
        self.page.locator(f"[data-report='{turn}']").wait_for(state="attached")

    def vote(self, question: str, *members: str) -> None:
        """Let members vote, and wait until one has won."""
        fields = self.page.locator(".roster-edit input")
        fields.first.wait_for()
        while fields.count() > len(members):
            self.page.locator(".roster-edit button.plain").last.click()
        for at, member in enumerate(members):
            fields.nth(at).fill(member)
        self.page.get_by_label("Question", exact=True).fill(question)
        self.page.get_by_role("button", name="Let them vote").click()
        self.page.locator(".chip", has_text="wins").wait_for()
        self.page.get_by_text("Who was shown, over").wait_for()

    def turn(self, stop: int) -> None:
        """Turn the dial to a stop, 0 the most even."""
        self.page.get_by_label("Fairness dial", exact=True).fill(str(stop))

    def shares(self, within: str) -> dict[str, float]:
        """Return the share of each provider in the bars of a part of the page."""
        rows = self.page.locator(f"{within} [data-provider]").evaluate_all(
            "rows => rows.map(row => [row.dataset.provider, Number(row.dataset.share)])"
        )
        return dict(rows)

    def violations(self) -> list[str]:
        """Return what axe finds serious or critical on the page as it is."""
        self.page.evaluate(
            axe().read_text(encoding="utf-8")
        )  # not by a script's address, which the policy forbids
        found: dict[str, Any] = self.page.evaluate("axe.run(document, {resultTypes: ['violations']})")
        return [
            f"{one['id']}: {json.dumps([node['target'] for node in one['nodes']][:3])}"
            for one in found["violations"]
            if one["impact"] in ("serious", "critical")
        ]

    def is_readable(self) -> bool:
        """Whether axe finds nothing in light and in dark, and nothing is wider than a phone."""
        found = []
        colours: tuple[Colours, ...] = ("light", "dark")
        for one in colours:
            self.page.emulate_media(color_scheme=one, reduced_motion="reduce")
            found += self.violations()
        self.page.set_viewport_size({"width": NARROW, "height": TALL})
        width = self.width()
        self.page.set_viewport_size(WIDE)
        return not found and width <= NARROW

    def reach(self, target: Locator) -> None:
        """Press Tab until a part of the page has the focus, as who has no mouse does."""
        target.wait_for(state="attached")
        for _ in range(MOST_STOPS):
            if target.evaluate("one => one === document.activeElement"):
                return
            self.page.keyboard.press("Tab")
        raise AssertionError(f"no Tab leads to {target}")

    def press(self, name: str, key: str = "Enter", role: Role = "button") -> None:
        """Reach the first part of a role that has a name, and press a key."""
        self.reach(self.page.get_by_role(role, name=name, exact=True).first)
        self.page.keyboard.press(key)

    def width(self) -> int:
        """Return the width of what the page shows; above the window's it scrolls sideways. CSS pixels."""
        return int(self.page.evaluate("document.documentElement.scrollWidth"))

    def picture(self, path: Path, part: str = "", *, height: int = 0) -> None:
        """Save a picture of a part of the page, or of its first ``height`` CSS pixels, in 256 colours."""
        from PIL import Image

        if part:
            taken = self.page.locator(part).screenshot()
        else:
            size = self.page.viewport_size or {"width": 1280, "height": 900}
            self.page.set_viewport_size({"width": size["width"], "height": height or size["height"]})
            taken = self.page.screenshot()
        Image.open(io.BytesIO(taken)).convert("RGB").quantize(256, dither=Image.Dither.NONE).save(
            path, optimize=True
        )

    def _requested(self, request: Any) -> None:
        if urlsplit(request.url).scheme not in ("data", "blob") and not request.url.startswith(
            f"{self.url}/"
        ):
            self.strangers.append(request.url)

    def _said(self, message: Any) -> None:
        if message.type == "error" and "Failed to load resource" not in message.text:
            self.complaints.append(message.text)
