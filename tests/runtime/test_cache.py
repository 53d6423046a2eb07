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
    environment = {name: value for name, value in os.environ.items() if not name.startswith("JAX_COMPILATION_CACHE")}
    command = [sys.executable, "-c", PROGRAM, str(folder)]
    finished = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
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
