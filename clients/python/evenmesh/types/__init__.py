"""Values that clients take and return."""
