"""Token selection: greedy, sampled and beam search, under a model's own rules."""
