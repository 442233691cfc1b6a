"""Keep collections of passages, and draw stochastic rankings of them."""
