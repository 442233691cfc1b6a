"""The study of RankRAG's training data: docs/studies/ablations.md and its plan."""
