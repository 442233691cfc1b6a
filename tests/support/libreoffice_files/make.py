"""Make the files of this folder by LibreOffice: ``python -m tests.support.libreoffice_files.make`` (needs ``soffice``).

Each is converted from a page or slides that are written here, so that it is saved by another program than the
libraries that read it. Those committed are of LibreOffice 7.4.7.2 of Debian 12, packages ``libreoffice-writer``,
``libreoffice-calc`` and ``libreoffice-impress`` without their recommended ones.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from tests.support import document_files

HERE: Final = Path(__file__).parent
FILLER: Final = "Nothing of interest stands in this sentence, which only takes room among others. " * 3
SENTENCES: Final = tuple(
    f"The {name} chain of the office corpus is oiled every {at + 300} kilometres by its rider."
    for at, name in enumerate(("first", "second", "third"))
)
CELL: Final = "12.50 EUR"

_ONE, _TWO, _THREE = SENTENCES
TEXT: Final = f"""<html><head><title>Report</title></head><body>
<h1>Care</h1><p>{_ONE}</p>
<h2>Tools</h2><p>{FILLER}{_TWO} {FILLER}</p>
<ul><li>a brush</li><li>a rag</li></ul>
<table border="1"><tr><td>part</td><td>price</td></tr><tr><td>thin chain</td><td>{CELL}</td></tr></table>
<h1 style="page-break-before: always">Storage</h1><p>{_THREE}</p></body></html>"""
SHEET: Final = f"part,price,remark\nbrush,3 EUR,\nthin chain,{CELL},{_ONE}\n"
SLIDES: Final = (("Care", (_ONE,), ""), ("Tools", ("a brush", _TWO), "Said beside it."))
CONVERSIONS: Final = (
    ("text.html", TEXT.encode(), "docx:MS Word 2007 XML", "text.docx"),
    ("text.html", TEXT.encode(), "pdf:writer_pdf_Export", "text.pdf"),
    ("text.html", TEXT.encode(), "epub:EPUB", "text.epub"),
    ("sheet.csv", SHEET.encode(), "xlsx:Calc MS Excel 2007 XML", "sheet.xlsx"),
    (
        "slides.pptx",
        document_files.presentation(SLIDES),
        "pptx:Impress MS PowerPoint 2007 XML",
        "slides.pptx",
    ),
    ("slides.pptx", document_files.presentation(SLIDES), "pdf:impress_pdf_Export", "slides.pdf"),
)
"""Of each file its source, what that says, the filter that saves it, and its name."""


def main() -> int:
    """Make the files again whose names hold a word; all without one."""
    only = sys.argv[1] if len(sys.argv) > 1 else ""
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        for source, said, saved_as, name in CONVERSIONS:
            if only not in name:
                continue
            (base / source).write_bytes(said)
            reads = ("--infilter=HTML (StarWriter)",) if source.endswith(".html") else ()
            words = ("soffice", f"-env:UserInstallation=file://{base}/profile", "--headless", *reads)
            subprocess.run(
                (*words, "--convert-to", saved_as, "--outdir", str(HERE), str(base / source)), check=True
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
