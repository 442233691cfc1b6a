"""Hold conversations on many topics and measure their stability, relevance and group fairness (GFRC)."""
