"""Strict mode: shapes and types are checked at run time, ranks must match, warnings are errors.

Double precision is not switched on here: the library has to work without that.
"""

import os
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("MPLBACKEND", "Agg")

import jax
from hypothesis import settings
from jaxtyping import install_import_hook

install_import_hook("newtongp", "beartype.beartype")  # before anything imports newtongp

jax.config.update("jax_numpy_rank_promotion", "raise")

# Compiled functions are kept between runs and shared by the workers.
_CACHE = Path(__file__).resolve().parent.parent / ".pytest_cache" / "jax"
jax.config.update("jax_compilation_cache_dir", str(_CACHE))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.3)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)

settings.register_profile("dev", deadline=None, max_examples=20)
settings.register_profile("ci", deadline=None, max_examples=20, derandomize=True)
settings.register_profile("thorough", deadline=None, max_examples=500)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") else "dev"))
