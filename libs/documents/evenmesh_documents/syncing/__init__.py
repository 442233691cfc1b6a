"""Keep the passages of named sources in step with where they come from."""
