"""The study of learning while agents ask: ``python -m benchmarks.online_study``."""
