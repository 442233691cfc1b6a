"""The evaluator: keeps what was shown and said, and measures exposure, utility, votes and conversations."""
