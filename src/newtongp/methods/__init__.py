"""The local half of inference: what happens to one row's site, given one row's marginal."""
