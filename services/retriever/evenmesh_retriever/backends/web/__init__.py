"""Search the web for passages: a SearxNG server finds pages, which are fetched, read and cut here."""
