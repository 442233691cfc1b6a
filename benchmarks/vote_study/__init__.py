"""The study of votes of retrievers over several sources: docs/studies/votes.md and its plan."""
