"""Fairness over time: what dial, program and controller cost on shared data, in relevance and in answers.

``python -m benchmarks.over_time`` simulates asks on every set and writes ``docs/studies/over-time/``;
``python -m benchmarks.over_time.answers`` has the bundled reader answer those of one set.
"""
