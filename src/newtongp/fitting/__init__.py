"""Hyperparameter learning: `fit`, with all rows at once or in batches of rows."""
