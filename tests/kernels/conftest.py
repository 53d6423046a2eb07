"""Kernel tests run in double precision and forbid silent changes of rank."""

import jax
import numpy as np
import pytest


@pytest.fixture(autouse=True)
def strict_double_precision():
    """64-bit types, and an error wherever arrays of different rank are combined."""
    with jax.enable_x64(True), jax.numpy_rank_promotion("raise"):
        yield


@pytest.fixture
def rng():
    """Random numbers that are the same in every run."""
    return np.random.default_rng(0)
