"""Strict mode: shapes and types are checked at run time, ranks must match, warnings are errors.

Double precision is not switched on here: the library has to work without that.
"""

import atexit
import contextlib
import gc
import itertools
import os
import re
import subprocess
import sys
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("MPLBACKEND", "Agg")
os.environ["NEWTONGP_CACHE"] = "off"  # tests run what they have compiled, except those of the cache
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
_NUMERICS = ("numerics", "methods", "priors", "inference.steps")
install_import_hook([f"newtongp.{room}" for room in _NUMERICS], "beartype.beartype")

jax.config.update("jax_numpy_rank_promotion", "raise")

# Which calls come after a program of another size, or one that was compiled with more effort, is ready depends on the
# clock: only the tests of this use them.
from newtongp._runtime import tiers
from newtongp.inference import own_sizes

own_sizes._PATIENCE = tiers._PATIENCE = 1e9

# Most tests of `fit` predict nothing, and two workers leave no core idle: predictions are not compiled ahead.
from newtongp.fitting import evaluator

evaluator.start_compiling_posterior = lambda setup, workspace: None

# What is traced makes very many objects, most of which stay: looking for garbage less often saves a tenth of the time.
gc.set_threshold(200_000, 20, 100)

# Compiled functions are kept between runs and shared by the workers. A first run finds hardly any of them again, and
# writing takes a tenth of its time.
_CACHE = Path(__file__).resolve().parent.parent / ".pytest_cache" / "jax"
if not os.environ.get("CI"):
    jax.config.update("jax_compilation_cache_dir", str(_CACHE))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.3)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)

# A worker that ends would free thousands of programs one by one, each in a time that grows with their number. It has
# sent its results by then, and leaves that to the system.
if "PYTEST_XDIST_WORKER" in os.environ:
    atexit.register(os._exit, 0)

# Examples in docstrings that run inference take seconds.
_INFERENCE = re.compile(r"\b(fit|infer|iterate|solve|filter_sweep|compare|cross_validate)\(")
_MARKS = {"quick": (), "slow": ("slow",), "thorough": ("slow", "thorough")}


def pytest_collection_modifyitems(config, items):
    """Mark the cases that `@pytest.mark.cases` names, and slow doctests.

    A name that no case has is an error where all are collected.
    """
    named, found = {}, set()
    for item in items:
        if isinstance(item, pytest.DoctestItem) and any(
            _INFERENCE.search(example.source) for example in item.dtest.examples
        ):
            item.add_marker("slow")
        mark = item.get_closest_marker("cases")
        if mark is None:
            continue
        kinds = dict(mark.kwargs)
        others = kinds.pop("others", "quick")
        case = item.callspec.id
        test = item.nodeid.removesuffix(f"[{case}]")
        named.update({(test, name): None for names in kinds.values() for name in names})
        found.add((test, case))
        kind = next((kind for kind, names in kinds.items() if case in names), others)
        for each in _MARKS[kind]:
            item.add_marker(each)
    only_some = any("::" in each for each in config.args) or config.getoption("lf", False)
    unknown = [] if only_some else [f"{test}[{name}]" for test, name in named if (test, name) not in found]
    if unknown:
        raise pytest.UsageError(f"pytest.mark.cases names cases that do not exist: {', '.join(unknown)}")


_MOST_MAPS = 45_000
_tests_run = itertools.count(1)


@pytest.fixture(autouse=True)
def _forget_programs():
    """Every compiled program takes some of the 65530 mappings that Linux allows a process, and XLA crashes without.

    So they are let go before that; the cache on disk still has those that took long to compile.
    """
    yield
    if next(_tests_run) % 10 == 0:
        with contextlib.suppress(OSError), open("/proc/self/maps") as maps:
            if sum(1 for _ in maps) > _MOST_MAPS:
                jax.clear_caches()


settings.register_profile("dev", deadline=None, max_examples=20)
settings.register_profile("ci", deadline=None, max_examples=20, derandomize=True)
settings.register_profile("thorough", deadline=None, max_examples=500)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") else "dev"))
