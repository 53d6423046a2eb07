"""Compiled programs on disk: found by a second process, bounded, and refused where that cannot work."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import pytest

import newtongp as ng

pytestmark = pytest.mark.versions

PROGRAM = """
import sys

import jax

compiled = []
def listen(event, duration, **_):
    if event.endswith("backend_compile_duration"):
        compiled.append(event)
jax.monitoring.register_event_duration_secs_listener(listen)

import newtongp as ng

before = jax.config.jax_compilation_cache_dir
print(ng.use_cache(sys.argv[1]), before)
result = ng.infer(ng.Model(ng.MarkovGP("matern32"), "poisson"), [0.0, 1.0, 2.0], [1, 2, 0])
print(result.status.name, len(compiled))
"""


def run(folder: Path) -> list[str]:
    return run_with({}, PROGRAM, str(folder))


def run_with(variables: dict[str, str], *command: str) -> list[str]:
    """The words that a Python program prints, in an environment without settings of caches but these."""
    unwanted = ("JAX_COMPILATION_CACHE", "NEWTONGP_CACHE", "XDG_CACHE_HOME")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(unwanted)}
    finished = subprocess.run(
        [sys.executable, "-c", *command], capture_output=True, text=True, env={**environment, **variables}, check=True
    )
    return finished.stdout.split()


@pytest.mark.slow
def test_a_second_process_loads_what_the_first_has_compiled(tmp_path):
    folder = tmp_path / "programs"
    path, before, status, compiled = run(folder)
    assert (Path(path), before, status) == (folder, "None", "CONVERGED")
    assert any(folder.iterdir()) and folder.stat().st_mode & 0o077 == 0
    assert int(compiled) > 0 and int(run(folder)[-1]) == 0


@pytest.mark.slow
def test_a_later_call_changes_the_folder(tmp_path):
    program = """
import sys, jax, newtongp as ng
for folder in sys.argv[1:]:
    ng.use_cache(folder)
    jax.jit(lambda x: x + len(folder))(1.0)
"""
    command = [sys.executable, "-c", program, str(tmp_path / "one"), str(tmp_path / "two")]
    subprocess.run(command, check=True, capture_output=True)
    assert any((tmp_path / "two").iterdir())


def test_folders_that_cannot_be_used_are_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"folder '.*file' cannot be made \(File exists\): name another folder"):
        ng.use_cache(tmp_path / "file")
    with pytest.raises(ValueError, match=r"folder '.*' cannot be made \(.*null byte\): name another folder"):
        ng.use_cache(tmp_path / "\0")
    with pytest.raises(ValueError, match="folder must be the name of a folder, got 3"):
        ng.use_cache(3)
    with pytest.raises(ValueError, match="max_bytes must be a whole number of at least 1, got 0"):
        ng.use_cache(tmp_path / "programs", max_bytes=0)
    assert not (tmp_path / "programs").exists()


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="files have no owners here")
def test_programs_of_others_are_not_run(tmp_path):
    (tmp_path / "programs").mkdir()
    (tmp_path / "programs").chmod(0o770)
    before = jax.config.jax_compilation_cache_dir
    with pytest.raises(ValueError, match=r"programs' belongs to another user, or others can write to it: name another"):
        ng.use_cache(tmp_path)
    assert jax.config.jax_compilation_cache_dir == before


UNASKED = """
import jax

lowered = []
def listen(event, duration, **details):
    if event.endswith("jaxpr_to_mlir_module_duration"):
        lowered.append(details.get("fun_name"))
jax.monitoring.register_event_duration_secs_listener(listen)

import newtongp as ng

class Own(ng.Likelihood):
    def log_prob(self, y, f):
        return y * f - jax.numpy.exp(f)

result = ng.fit(ng.Model(ng.MarkovGP("matern32"), "poisson"), [0.0, 1.0, 2.0, 3.0], [1, 2, 0, 5])
str(result.summary())
few = len(lowered)
own = ng.infer(ng.Model(ng.MarkovGP("matern32"), Own()), [0.0, 1.0, 2.0, 3.0], [1, 2, 0, 5])
settings = jax.config.jax_compilation_cache_dir, jax.config.jax_persistent_cache_min_compile_time_secs
print(result.status.name, result.energy, own.energy, result.predict([0.5]).quantile(0.9)[0], *settings, few)
print(len(lowered) - few)
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "getuid"), reason="XDG_CACHE_HOME is of Unix")
def test_programs_are_kept_unasked_and_nothing_else_is(tmp_path):
    """A second process finds all programs of newtongp, traces those with a user's class, and has JAX's own settings."""
    first, second = (run_with({"XDG_CACHE_HOME": str(tmp_path)}, UNASKED) for _ in range(2))
    assert first[:-2] == second[:-2] and first[4:6] == ["None", "1.0"]
    assert int(first[-2]) > 5 and int(second[-2]) == 0
    assert int(first[-1]) > 0 and int(second[-1]) > 0
    assert [file.name for file in tmp_path.iterdir()] == ["newtongp"]
    assert [file.name for file in (tmp_path / "newtongp").iterdir()] == ["programs"]
    assert list((tmp_path / "newtongp" / "programs").glob("*.program"))
    assert (tmp_path / "newtongp" / "programs").stat().st_mode & 0o077 == 0


DECISION = """
from newtongp._runtime import saved_programs
print(saved_programs.are_saved(), saved_programs.are_wanted(), saved_programs._state["folder"])
"""


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="files have no owners here")
def test_where_programs_are_kept_unasked(tmp_path):
    one, other = tmp_path / "one", tmp_path / "other"
    home = {"XDG_CACHE_HOME": str(one), "HOME": str(tmp_path)}
    assert run_with(home, DECISION) == ["True", "False", str(one / "newtongp" / "programs")]
    assert run_with({**home, "NEWTONGP_CACHE": str(other)}, DECISION) == ["True", "False", str(other / "programs")]
    assert run_with({**home, "NEWTONGP_CACHE": "off"}, DECISION) == ["False", "False", "None"]
    (one / "newtongp" / "programs").chmod(0o777)  # others could put programs there
    assert run_with(home, DECISION) == ["False", "False", "None"]
    (tmp_path / "file").write_text("")
    assert run_with({**home, "XDG_CACHE_HOME": str(tmp_path / "file")}, DECISION) == ["False", "False", "None"]
    with pytest.raises(subprocess.CalledProcessError) as error:
        run_with({**home, "NEWTONGP_CACHE": str(tmp_path / "file")}, DECISION)
    assert "NEWTONGP_CACHE must be" in error.value.stderr
