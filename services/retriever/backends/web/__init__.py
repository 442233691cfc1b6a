"""Web search as a source of passages: a SearxNG server finds pages, which are fetched, read and cut here."""
