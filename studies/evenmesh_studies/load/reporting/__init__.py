"""Write tables, figures and pages of a load test."""
