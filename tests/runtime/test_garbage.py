"""What importing newtongp leaves for Python's garbage collector to look at."""

import gc
import subprocess
import sys

import pytest

from newtongp._runtime import garbage

PROGRAM = """
import gc
import weakref

class Cycle:
    def __init__(self):
        self.itself = self

import newtongp

print(gc.isenabled(), gc.get_freeze_count() > 50_000, len(gc.get_objects()) < 10_000)
later = Cycle()
found = weakref.ref(later)
del later
gc.collect()
print(found() is None)
"""


@pytest.mark.slow
def test_what_is_imported_is_not_looked_at_again_and_what_is_made_later_is():
    finished = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert finished.stdout.split() == ["True"] * 4


def test_nothing_is_set_aside_in_a_process_that_has_imported_much():
    before = gc.get_freeze_count()
    with garbage.imports():
        assert not gc.isenabled()
        cycle: list = []
        cycle.append(cycle)
    assert gc.isenabled() and gc.get_freeze_count() == before


def test_an_import_that_fails_sets_nothing_aside():
    before = gc.get_freeze_count()
    with pytest.raises(ImportError), garbage.imports():
        raise ImportError("no such module")
    assert gc.isenabled() and gc.get_freeze_count() == before
