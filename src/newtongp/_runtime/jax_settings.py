"""What tracing depends on besides the function and its arguments."""

import contextlib
import platform
import sys
from collections.abc import Iterator

import jax

TRIED = (0, 8) <= jax.__version_info__[:2] < (0, 11) and (sys.platform, platform.machine()) == ("linux", "x86_64")
"""Whether undocumented options of this version's compiler were tried here before: others are tried when first used."""

_SETTINGS = (
    "jax_default_matmul_precision",
    "jax_default_prng_impl",
    "jax_enable_x64",
    "jax_numpy_dtype_promotion",
    "jax_threefry_partitionable",
)
_variants: list[str] = []


@contextlib.contextmanager
def trace_variant(name: str) -> Iterator[None]:
    """A context in which programs are traced differently: those traced outside of it are not used inside."""
    _variants.append(name)
    try:
        yield
    finally:
        _variants.pop()


def is_debugged() -> bool:
    """Whether JAX runs or checks the operations of a program one by one."""
    return jax.config.jax_disable_jit or jax.config.jax_debug_nans  # pyright: ignore[reportAttributeAccessIssue]


def circumstances() -> tuple:
    """What tracing depends on besides the function and its arguments."""
    return tuple(getattr(jax.config, name) for name in _SETTINGS), tuple(_variants)
