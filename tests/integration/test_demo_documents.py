"""The demo's own documents: four kinds become passages of four providers, and an answer cites a page."""

from __future__ import annotations

import asyncio

import pytest

from evenmesh import Client
from evenmesh.commands.screen import Screen
from evenmesh_documents.gathering import Spool
from evenmesh_mesh.commands import demo
from tests.integration.conftest import RunningMesh


def test_the_folder_has_four_kinds_and_each_is_read_whole() -> None:
    kinds = {path.suffix for path in demo.FOLDER.rglob("*") if path.is_file()}
    assert kinds == {".html", ".md", ".pdf", ".xlsx"}
    with Spool() as spool:
        gathered = demo.read_documents(spool, demo.splitting_of_documents())
        texts = "\n".join(one.text for one in spool)
    assert (gathered.files, gathered.skipped, gathered.notes, gathered.empty) == (4, (), (), ())
    assert set(gathered.providers) == {"club", "press", "shop", "workshop"}
    assert "All pages" not in texts
    assert "| thick | rain | 5 EUR |" in texts


@pytest.mark.mesh
def test_the_answer_cites_the_page_of_a_document(
    mesh: RunningMesh, client: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        asyncio.run(demo.show_documents(Screen(), mesh.addresses))
        out = capsys.readouterr().out
        assert "4 files, 8 passages" in out
        assert "demo-documents: 8 added; 8 passages now" in out
        assert "200 kilometres" in out
        assert "workshop/manual.pdf, page 2" in out
    finally:
        if any(one.name == demo.DOCUMENTS for one in client.collections()):
            client.delete_collection(demo.DOCUMENTS)
