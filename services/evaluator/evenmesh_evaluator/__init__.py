"""The evaluator: stores observations, and measures exposure, utility, votes and conversations."""
