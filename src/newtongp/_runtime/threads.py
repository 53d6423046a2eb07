"""One thread for the linear algebra of small problems.

OpenBLAS splits even the factorisation of a small matrix between all cores, and its threads wait for each other without
sleeping. On one core the same factorisation takes a few per cent more time if the machine is idle, and a small fraction
of it if anything else is running.
"""

import contextlib
import functools
import sys
import threading
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

_lock = threading.Lock()
_state: dict[str, Any] = {"users": 0, "limiter": None}


def _limiter() -> Any:
    """What sets one thread, and later the number of before; None if no program that needs LAPACK was lowered yet.

    JAX uses the LAPACK of SciPy, and imports this module of it for the first program that needs it.
    """
    return _controller().limit(limits=1) if "scipy.linalg.cython_lapack" in sys.modules else None


@functools.cache
def _controller() -> Any:
    import threadpoolctl

    return threadpoolctl.ThreadpoolController().select(user_api="blas")


@functools.cache
def load_lapack() -> None:
    """Make JAX load LAPACK for programs that it has not lowered itself; otherwise it does so when it lowers them."""
    jax.jit(jnp.linalg.cholesky).lower(np.eye(1))


@contextlib.contextmanager
def one_blas_thread() -> Iterator[None]:
    """A context in which BLAS and LAPACK use one thread. Afterwards they use as many as before.

    The number of threads belongs to the process, so the first of several Python threads sets it and the last resets it.
    A thread that saves and restores this number by itself in the meantime saves and restores 1. LAPACK that is loaded
    within the context keeps all its threads until another context is entered.
    """
    with _lock:
        if _state["limiter"] is None:
            _state["limiter"] = _limiter()
        _state["users"] += 1
    try:
        yield
    finally:
        with _lock:
            _state["users"] -= 1
            if _state["users"] == 0 and _state["limiter"] is not None:
                _state["limiter"].restore_original_limits()
                _state["limiter"] = None
