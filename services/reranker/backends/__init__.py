"""Ways to score passages for a query."""
