"""Settings of a web-search source."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, HttpUrl


class WebSourceSettings(BaseModel):
    """One SearxNG server and how its results become passages."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    url: HttpUrl
    """Where the server is, such as ``http://searx:8080``; ``/search`` below it must speak JSON."""
    description: str = Field(default="", max_length=1024)
    """One line on what it searches."""
    results: int = Field(default=4, ge=1, le=20)
    """Results whose pages are read, from the best. Pages, [1, 20]."""
    language: str = Field(default="", pattern=r"^([a-z]{2,3}(-[A-Za-z]{2,4})?|all|auto)?$")
    """Language to search in, such as ``en``; empty leaves it to the server."""
    categories: tuple[Annotated[str, Field(pattern=r"^[a-z][a-z ]{0,63}$")], ...] = ()
    """Categories of the server to search, such as ``general``; none leaves it to the server."""

    words: int = Field(default=100, ge=20, le=1000)
    """Size that passages of a page are cut to, about. Words, [20, 1000]; 100 in Li et al., appendix C.1."""
    passages_per_page: int = Field(default=25, ge=1, le=100)
    """Most passages of a page, from its beginning, [1, 100]."""
    snippets: bool = True
    """Whether the server's own few words stand in for a page that cannot be read."""

    keep_s: float = Field(default=30.0, ge=0, le=3600)
    """How long what a query found is given again to who asks the same, as the retrievers of one ensemble do.
    Seconds, [0, 3600]; 0 searches every time."""
    timeout_s: float = Field(default=10.0, gt=0, le=120)
    """Longest wait for search and pages together. Seconds, (0, 120]."""
    page_timeout_s: float = Field(default=5.0, gt=0, le=120)
    """Longest wait for one page. Seconds, (0, 120]."""
    page_bytes: int = Field(default=2**20, ge=2**10, le=2**25)
    """Most that is read of a page; what is longer is cut. Bytes, [1024, 33554432]."""
    redirects: int = Field(default=3, ge=0, le=10)
    """Most redirects that are followed for a page, [0, 10]."""
    allow_private: bool = False
    """Whether pages may be fetched from addresses that are not public. The search server always may be."""
