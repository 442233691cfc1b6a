"""From a folder of files to an answer that cites the page, on the real mesh."""

from __future__ import annotations

from pathlib import Path

import pytest

from evenmesh import Client
from evenmesh.addresses import VARIABLES
from evenmesh.commands import main
from evenmesh_documents import commands
from tests.integration.conftest import RunningMesh
from tests.support import document_files as files

pytestmark = pytest.mark.mesh

COLLECTION = "documents"


def test_a_folder_is_ingested_and_an_answer_cites_the_page(
    mesh: RunningMesh,
    client: Client,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for service, variable in VARIABLES.items():
        monkeypatch.setenv(variable, getattr(mesh.addresses, service))
    # An entry point counts where the distribution is installed; here the command is called as one would.
    monkeypatch.setattr("evenmesh.commands.ingest", commands.ingest)
    pages = [
        [(18.0, "Chains"), (11.0, "A chain is made of links.")],
        [(18.0, "Care of chains"), (11.0, "A bicycle chain should be oiled every 200 kilometres.")],
    ]
    for name, data in {
        "acme/manual.pdf": files.pdf(pages),
        "zeta/shop.xlsx": files.workbook({"Oil": [["kind", "price"], ["thin", "3 EUR"]]}),
        "zeta/bad.docx": b"no archive",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(data)
    try:
        assert main(["ingest", str(tmp_path), "-c", COLLECTION]) == 0
        out = capsys.readouterr().out
        assert "zeta/bad.docx: is damaged, or not a .docx file" in out
        assert f"{COLLECTION}: 3 added; 3 passages now" in out

        assert main(["ingest", str(tmp_path), "-c", COLLECTION]) == 0
        assert f"{COLLECTION}: 3 unchanged; 3 passages now" in capsys.readouterr().out

        assert (
            main(["ask", "How often should a bicycle chain be oiled?", "-c", COLLECTION, "--timeout", "240"])
            == 0
        )
        answer = capsys.readouterr().out
        assert "200 kilometres" in answer.splitlines()[0]
        assert (
            "[1] Chains › Care of chains  acme  acme/manual.pdf, page 2  acme/manual.pdf#7988e649d21ad79a"
            in answer
        )
    finally:
        if any(one.name == COLLECTION for one in client.collections()):
            client.delete_collection(COLLECTION)
