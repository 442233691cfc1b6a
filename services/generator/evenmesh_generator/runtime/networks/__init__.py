"""Networks that the decoding loop computes with, one per kind of model, and their batches."""
