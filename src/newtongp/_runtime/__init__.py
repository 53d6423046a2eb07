"""Double precision, compilation, lazy imports and devices: what the package needs of Python and JAX."""
