"""Studies as pages and files: one self-contained HTML page, JSON, CSV."""

from evenmesh_lab.reports.files import as_json, write_csv
from evenmesh_lab.reports.formats import shown
from evenmesh_lab.reports.markdown import as_markdown
from evenmesh_lab.reports.page import Report, Section, caption, page

__all__ = ["Report", "Section", "as_json", "as_markdown", "caption", "page", "shown", "write_csv"]
