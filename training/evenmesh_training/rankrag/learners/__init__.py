"""Train one kind of model each, behind one protocol."""
