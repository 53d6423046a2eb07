"""Strict mode: shapes and types are checked at run time, ranks must match, warnings are errors.

Double precision is not switched on here: the library has to work without that.
"""

import contextlib
import itertools
import os
import subprocess
import sys
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("MPLBACKEND", "Agg")
# Two workers that each spin two BLAS threads on two cores are far slower than two that keep to one.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Tests compile hundreds of small programs and run each for milliseconds: compile quickly, not well. XLA ends
# the process at a flag it does not know, so ask in another process first; the workers inherit the answer.
_QUICK = "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"
if "XLA_FLAGS" not in os.environ:
    probe = subprocess.run(
        [sys.executable, "-c", "import jax; jax.jit(lambda x: x + 1)(1.0)"],
        env={**os.environ, "XLA_FLAGS": _QUICK},
        capture_output=True,
    )
    os.environ["XLA_FLAGS"] = _QUICK if probe.returncode == 0 else ""

import jax
import pytest
from hypothesis import settings
from jaxtyping import install_import_hook

# Shapes are checked in the rooms with numerics, before anything imports them. The rooms that face the user
# check for themselves, with messages of their own.
_NUMERICS = ("linalg", "gaussian", "cubature", "kalman", "methods", "priors", "steps")
install_import_hook([f"newtongp.{room}" for room in _NUMERICS], "beartype.beartype")

jax.config.update("jax_numpy_rank_promotion", "raise")

# Compiled functions are kept between runs and shared by the workers. Whole programs are not: what is not traced is not
# checked.
os.environ.setdefault("NEWTONGP_KEEP_PROGRAMS", "0")
_CACHE = Path(__file__).resolve().parent.parent / ".pytest_cache" / "jax"
jax.config.update("jax_compilation_cache_dir", str(_CACHE))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.3)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)

_THOROUGH = ("test_markov.py", "test_sparse.py", "test_minibatch.py", "test_devices.py")
"""Where slow tests go through every method, kernel, seed or device once more."""

# Tests that say the same as a quicker one does for another model, or that compile more than they test: these parts of
# their names make them slow ones. They are listed here, and not marked one by one, because many are single cases.
_SLOW = {
    "test_readme.py": ("latents.md", "time.md", "extending.md"),
    "test_precision.py": ("stays_single_precision",),
    "test_sparse.py": (
        "two_latents_with_all_rows",
        "small_powers_are_vi",
        "improper_posterior_is_called",
        "no_more_are_chosen",
        "shared-",
        "own-",
        "[newton]",
        "[pl",
        "step_by_step[power",
        "leaving_one_out",
        "rows_in_blocks[768",
    ),
    "test_linear_latents.py": ("[network", "[subbands", "[mixture", "nodes[noise]", "function[noise]", "little_noise"),
    "test_minibatch.py": (
        "two_latents_and_row_parameters",
        "small-full",
        "tied_cavities",
        "indefinite_sites",
        "small_powers",
        "tied_batches",
    ),
    "test_dense_and_markov.py": ("test_two_latents", "pieces_do_not", "both_say", "state_space_model_is", "joint_and"),
    "test_markov.py": ("two_latents", "parameters0", "indefinite_filtered", "first-order", "[newton]"),
    "test_smoothers.py": ("bearings", "pendulum-1.0", "gauss_hermite_filter"),
    "test_properties.py": ("student", "poisson"),
    "test_smoke.py": ("first-order", "pl2"),
    "test_oracles.py": ("student_t", "StudentT"),
    "test_latents.py": ("mcycle_unique", "softplus", "mcycle40_hetero_exp_MarkovExpectation"),
    "test_partly_missing.py": ("not_gaussian", "left_out", "PL2", "PL-"),
    "test_predict.py": ("[beta]", "[binomial]", "[student-t]"),
    "test_linear.py": ("heteroscedastic", "derivatives"),
    "test_statespace_model.py": ("joint", "one_step_ahead"),
}


def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.name in _THOROUGH and item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.thorough)
        if any(part in item.nodeid for part in _SLOW.get(item.path.name, ())):
            item.add_marker(pytest.mark.slow)


_MOST_MAPS = 30_000
_tests_run = itertools.count(1)


@pytest.fixture(autouse=True)
def _forget_programs():
    """Every compiled program takes some of the 65530 mappings that Linux allows a process, and XLA crashes without.

    So they are let go before that; the cache on disk still has those that took long to compile.
    """
    yield
    if next(_tests_run) % 20 == 0:
        with contextlib.suppress(OSError), open("/proc/self/maps") as maps:
            if sum(1 for _ in maps) > _MOST_MAPS:
                jax.clear_caches()


settings.register_profile("dev", deadline=None, max_examples=20)
settings.register_profile("ci", deadline=None, max_examples=20, derandomize=True)
settings.register_profile("thorough", deadline=None, max_examples=500)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") else "dev"))
