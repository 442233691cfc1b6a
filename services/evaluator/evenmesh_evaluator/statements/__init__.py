"""Statements about what single providers deserved and were given."""
