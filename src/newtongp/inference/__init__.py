"""Inference: the loop, its steps and starts, and the functions that users call."""
