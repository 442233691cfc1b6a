"""Read data sets, and blend them into training examples."""
