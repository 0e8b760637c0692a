"""Recording: a model with instruments attached reads a story."""
