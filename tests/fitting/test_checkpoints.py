"""Checkpoints of `fit`: what a killed process loses, and files that no search has written."""

import functools
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest

import newtongp as ng
from newtongp.fitting import checkpoint
from newtongp.storage import FileFormatError, read_file, write_file

X = np.linspace(0.0, 5.0, 20)
COUNTS = np.random.default_rng(0).poisson(np.exp(np.sin(X)))
WHOLE = "newtongp fit checkpoint"
BATCHES = "newtongp fit checkpoint in batches"


class Clock:
    """Time that passes only where it is told to."""

    def __init__(self, monkeypatch):
        self.now = 100.0
        monkeypatch.setattr(checkpoint.time, "monotonic", lambda: self.now)


def test_what_took_longer_than_writing_is_written(tmp_path, monkeypatch):
    clock = Clock(monkeypatch)
    file = checkpoint.Checkpoint(tmp_path / "fit", WHOLE, "mark")

    def slow_write(*_):
        clock.now += 0.05

    monkeypatch.setattr("newtongp.storage.write_file", slow_write)
    asked = []
    for seconds in (0.001, 0.2, 0.06, 0.04, 0.04, 5.0, *[0.1 / 3.0] * 16):
        clock.now += seconds
        asked.append(file.is_due())
        if asked[-1]:
            file.write({})
    # The first is written, since nothing is known of writing; quick ones wait until ten times 0.05 s have passed.
    assert asked == [True, True, True, False, False, True, *[False] * 14, True, False]
    assert file.cost == pytest.approx(0.05)


KILLED = """
import sys, time
import numpy as np
import newtongp as ng
from newtongp.fitting import fit as whole
x = np.linspace(0.0, 10.0, 40)
y = np.random.default_rng(0).poisson(np.exp(1.0 + np.sin(x)))
before = whole.Evaluator._evaluate
def slowly(self, free, *rest):
    found = before(self, free, *rest)
    time.sleep(0.4)
    print(len(self.record) + 1, flush=True)
    return found
whole.Evaluator._evaluate = slowly
ng.fit(ng.Model(ng.MarkovGP("matern32"), "poisson"), x, y, checkpoint=sys.argv[1])
"""


@pytest.mark.slow
@pytest.mark.thorough
def test_a_kill_loses_the_evaluation_under_way_and_no_other(tmp_path):
    path, rng, computed = tmp_path / "fit", np.random.default_rng(1), 0
    for _ in range(3):
        with subprocess.Popen([sys.executable, "-c", KILLED, str(path)], stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            lines = iter(process.stdout)
            first = int(next(lines))
            assert first > computed, "what was recorded is computed again"
            for _ in range(int(rng.integers(2, 5))):
                next(lines)
            time.sleep(rng.uniform(0.0, 0.5))
            os.kill(process.pid, signal.SIGKILL)
            computed = max([first, *map(int, lines)])
        # Of an evaluation that had ended, the writing may have been under way.
        recorded = len(read_file(path, WHOLE)["energy"])
        assert recorded >= computed - 1
        computed = recorded


@functools.cache
def model(batches):
    prior = ng.SparseGP(ng.kernels.RBF(), 5) if batches else ng.MarkovGP(ng.kernels.Matern32())
    return ng.Model(prior, ng.likelihoods.Poisson())


def fit(path, batches):
    options = {"batch_size": 10} if batches else {"standard_errors": False}
    return ng.fit(model(batches), X, COUNTS, max_steps=1, checkpoint=path, throw=False, **options)


@functools.cache
def written(batches):
    """What a search has written, of all rows or in batches."""
    with tempfile.TemporaryDirectory() as folder:
        fit(Path(folder) / "fit", batches)
        return read_file(Path(folder) / "fit", BATCHES if batches else WHOLE)


def without(name):
    return lambda kept: kept.pop(name)


def put(name, change):
    def apply(kept):
        kept[name] = change(kept[name])

    return apply


def entry(value):
    def apply(array):
        array = array.copy()
        array.reshape(-1)[-1] = value
        return array

    return apply


@pytest.mark.cases(
    thorough=[
        "True-<lambda>-counters must be an array of integers",
        "True-apply-counters must be counts0",
        "True-apply-counters must be counts1",
        "True-apply-trace must have shape",
        "True-apply-iterates must have shape",
        "True-apply-state0 must have shape",
        "True-apply-the parameters of state must be finite",
        "True-<lambda>-safe1 must be an array of",
    ]
)
@pytest.mark.parametrize(
    ("batches", "change", "message"),
    [
        (False, without("energy"), "energy must be an array of floats"),
        (False, put("energy", lambda a: a[:-1]), r"energy must have shape \(\d+,\), got"),
        (False, put("energy", entry(np.nan)), "energies must be numbers"),
        (False, put("energy", entry(-np.inf)), "energies must be numbers"),
        (False, put("energy", lambda a: "low"), "energy must be an array of floats"),
        (False, put("free", lambda a: a[:, :-1]), r"free must have shape \(any, 2\)"),
        (False, put("gradient", entry(np.inf)), "must be finite"),
        (False, put("status", entry(77)), "status must hold endings of inference"),
        (False, put("steps", lambda a: a + 0.5), "steps must be an array of integers"),
        (False, put("linear", lambda a: a[:-1]), "linear must have shape"),
        (False, put("precision", entry(np.nan)), "must be finite"),
        (False, put("free", lambda a: a + 1.0), "belongs to another fit: its evaluation 0 was at another point"),
        (False, put("mark", lambda a: None), "belongs to another fit"),
        pytest.param(True, without("counters"), "counters must be an array of integers", marks=pytest.mark.slow),
        pytest.param(True, put("counters", entry(77)), "counters must be counts", marks=pytest.mark.slow),
        pytest.param(True, put("counters", lambda a: -a - 1), "counters must be counts", marks=pytest.mark.slow),
        pytest.param(True, put("trace", lambda a: a[None]), "trace must have shape", marks=pytest.mark.slow),
        pytest.param(True, put("iterates", lambda a: a[:, :-1]), "iterates must have shape", marks=pytest.mark.slow),
        pytest.param(True, put("state0", lambda a: a[:-1]), "state0 must have shape", marks=pytest.mark.slow),
        pytest.param(
            True, put("state0", entry(np.nan)), "the parameters of state must be finite", marks=pytest.mark.slow
        ),
        pytest.param(True, without("safe1"), "safe1 must be an array of", marks=pytest.mark.slow),
    ],
)
def test_contents_that_no_search_wrote_are_refused(batches, change, message, tmp_path):
    kept = dict(written(batches))
    change(kept)
    path = tmp_path / "fit"
    write_file(path, BATCHES if batches else WHOLE, kept)
    with pytest.raises(ValueError, match=message) as caught:
        fit(path, batches)
    assert str(path) in str(caught.value)


def test_a_checkpoint_without_names_is_refused(tmp_path):
    write_file(tmp_path / "fit", WHOLE, [1, 2])
    with pytest.raises(
        FileFormatError, match=r"it contains no named arrays\. Delete it to start anew, or use another file"
    ):
        fit(tmp_path / "fit", False)
