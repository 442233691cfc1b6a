"""Studies as pages and files: one self-contained HTML page, JSON, CSV."""

from raglab.reports.files import as_json, write_csv
from raglab.reports.formats import shown
from raglab.reports.markdown import as_markdown
from raglab.reports.page import Report, Section, caption, page

__all__ = ["Report", "Section", "as_json", "as_markdown", "caption", "page", "shown", "write_csv"]
