"""The study of agents that have something to gain: docs/studies/agents.md."""
