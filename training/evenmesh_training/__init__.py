"""Train models: RankRAG, agents, iterative utility maximisation, and the bundled models."""
