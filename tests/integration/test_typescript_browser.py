"""The TypeScript client in headless Chromium: a page of another origin asks through the gateway, over Connect."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from evenmesh import Client
from tests.integration.conftest import DEMO, RunningMesh
from tests.support.console_page import PATIENCE_MS, chromium
from tests.support.gateway_process import GatewayProcess
from tests.support.node_tools import CLIENT, esbuild, node_with_client
from tests.support.scripted_http import in_thread, replying

pytestmark = [pytest.mark.mesh, pytest.mark.timeout(900)]

QUESTION = "How often should I oil my chain?"
NOT_FOUND = 5

ASK: Final = """async ([address, collection, question]) => {
  const mesh = evenmesh.connectMesh({ baseUrl: address });
  let text = "", deltas = 0, shares = [];
  try {
    const events = mesh.ask(question, {
      source: { case: "collection", value: collection },
      sampling: { alpha: 2, numRankings: 4, seed: 11n },
      skipObservation: true,
    });
    for await (const event of events) {
      if (event.case === "delta") { text += event.value.text; deltas += 1; }
      if (event.case === "report") shares = event.value.providers.map((one) => [one.name, one.share]);
    }
    return JSON.stringify({ text, deltas, shares });
  } catch (error) {
    if (!(error instanceof evenmesh.MeshError)) throw error;
    const { code, reason, field, rawMessage } = error;
    return JSON.stringify({ code, reason, field, message: rawMessage });
  }
}"""


@pytest.fixture(scope="module")
def origin() -> Iterator[str]:
    """The origin of an empty page."""
    page = replying(200, "<!doctype html><title>A page</title>", content_type="text/html")
    with in_thread(page) as server:
        yield server.origin


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The client as one script, as an application's bundler makes it."""
    node_with_client()
    made = tmp_path_factory.mktemp("bundle") / "evenmesh.js"
    options = ["--bundle", "--format=iife", "--global-name=evenmesh", f"--outfile={made}"]
    subprocess.run([esbuild(), "dist/index.js", *options], cwd=CLIENT, check=True, capture_output=True)
    return made


def _asked(address: str, origin: str, bundle: Path, collection: str) -> dict[str, Any]:
    with chromium() as browser:
        page = browser.new_page()
        page.set_default_timeout(PATIENCE_MS)
        page.goto(origin)
        page.add_script_tag(path=bundle)
        found: dict[str, Any] = json.loads(page.evaluate(ASK, [address, collection, QUESTION]))
        return found


def test_a_page_streams_an_ask_and_reads_an_errors_details(
    mesh: RunningMesh, client: Client, origin: str, bundle: Path, tmp_path: Path
) -> None:
    with GatewayProcess(tmp_path, mesh.addresses, EVENMESH_GATEWAY_CORS_ORIGINS=origin) as served:
        answered = _asked(served.url, origin, bundle, DEMO)
        asked = client.answer(QUESTION, alpha=2, samples=4, seed=11, collection=DEMO, observe=False)
        assert asked.report is not None
        assert answered["text"] == asked.text
        assert answered["deltas"] >= 1
        assert answered["shares"] == [[one.name, one.share] for one in asked.report.providers]
        error = _asked(served.url, origin, bundle, "nothing")
        assert (error["code"], error["reason"], error["field"]) == (NOT_FOUND, "NOT_FOUND", "collection")
        assert "nothing" in error["message"]
