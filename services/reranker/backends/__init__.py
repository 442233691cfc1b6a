"""Ways to score passages; each passes the suite in ``tests/contract/test_rerankers.py``."""
