"""Many series: the same work for each of them, on all cores, where a failure does not end the rest."""

import concurrent.futures
import contextlib
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from .._runtime.threads import one_blas_thread
from ..results.status import FitWarning
from ..terms.table import Table
from ..validation.text import short


def split(given: Any, series: str) -> dict[Any, np.ndarray]:
    """The rows of every series, by its label, in the order of their first rows."""
    labels, which = Table(given)[series].labels()
    first = sorted(range(len(labels)), key=lambda number: int(np.argmax(which == number)))
    return {labels[number]: np.flatnonzero(which == number) for number in first}


def for_each(
    work: Callable[[Any], Any], keys: Mapping[Any, Any], workers: int | None, progress: bool, what: str
) -> tuple[dict[Any, Any], dict[Any, str]]:
    """`work` of every value, by key, and what went wrong with others.

    One series after the other compiles a program only once per size. Threads then share it: arithmetic runs outside of
    Python, so that they keep several cores busy.
    """
    done: dict[Any, Any] = {}
    failures: dict[Any, str] = {}

    def attempt(key: Any) -> tuple[Any, Any, str | None]:
        try:
            return key, work(keys[key]), None
        except (ValueError, RuntimeError, ArithmeticError) as error:
            return key, None, f"{type(error).__name__}: {error}"

    count = min(len(keys), workers or os.cpu_count() or 1)
    with _progress(progress, len(keys), what) as step:
        for key, found, problem in _attempts(attempt, list(keys), count):
            if problem is None:
                done[key] = found
            else:
                failures[key] = problem
            step()
    ordered = {key: done[key] for key in keys if key in done}
    if failures and not ordered:
        raise RuntimeError(f"no series could be {what}; the first failed with {next(iter(failures.values()))}")
    if failures:
        first, problem = next(iter(failures.items()))
        warnings.warn(
            f"{len(failures)} of {len(keys)} series could not be {what}, and are left out (see `failures`): the first "
            f"is {short(first)}, {problem}",
            FitWarning,
            stacklevel=4,
        )
    return ordered, failures


def in_threads(work: Callable[[Any], Any], items: list[Any]) -> list[Any]:
    """`work` of every item, in order, on all cores; the first alone, because it compiles."""
    workers = min(len(items), os.cpu_count() or 1)
    if workers <= 1:
        return [work(item) for item in items]
    with one_blas_thread(), _frequent_switches(), concurrent.futures.ThreadPoolExecutor(workers) as pool:
        return [work(items[0]), *pool.map(work, items[1:])]


def _attempts(attempt: Callable[[Any], Any], keys: list[Any], workers: int) -> Iterator[Any]:
    if workers == 1:
        yield from map(attempt, keys)
        return
    with one_blas_thread(), _frequent_switches(), concurrent.futures.ThreadPoolExecutor(workers) as pool:
        yield attempt(keys[0])  # compiles what most others need
        try:
            yield from pool.map(attempt, keys[1:])
        except BaseException:  # Ctrl-C: what has not begun is not begun
            pool.shutdown(wait=False, cancel_futures=True)
            raise


_SWITCH = 2e-4


@contextlib.contextmanager
def _frequent_switches() -> Iterator[None]:
    """Threads of Python take turns after 0.2 ms in place of 5.

    A series needs the interpreter for a moment after every few milliseconds of arithmetic, and would then wait 5 ms for
    a thread that is busy in it.
    """
    before = sys.getswitchinterval()
    sys.setswitchinterval(min(before, _SWITCH))
    try:
        yield
    finally:
        sys.setswitchinterval(before)


@contextlib.contextmanager
def _progress(wanted: bool, total: int, what: str) -> Iterator[Callable[[], None]]:
    if not wanted:
        yield lambda: None
        return
    from rich.progress import Progress

    with Progress() as bar:
        task = bar.add_task(f"series {what}", total=total)
        yield lambda: bar.advance(task)
