"""Make the calls of a load test: when they are due, what they ask, who makes them."""
