"""From a model and data to a posterior: the loop, its steps and starts, and the functions that users call."""
