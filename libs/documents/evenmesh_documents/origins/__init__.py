"""Find documents: in folders, archives and buckets, and on sites."""
