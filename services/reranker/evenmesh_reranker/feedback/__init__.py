"""Feedback of agents: intake, quality, retention, and the state of training on it."""
