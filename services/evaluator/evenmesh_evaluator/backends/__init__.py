"""Keep observations in a SQL database."""
