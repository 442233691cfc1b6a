"""The retriever service: collections of passages, and stochastic rankings of them."""
