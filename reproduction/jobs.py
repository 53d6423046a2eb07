"""One method on some splits of a case study, here or in other processes.

Several at a time go to processes of their own, not to threads: programs would share the few threads that XLA has.
"""

import functools
import multiprocessing
import os
import queue
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any, NamedTuple

import jax

from . import beyond, runner
from .cases import CASES, Case
from .catalogue import ENTRIES


class Job(NamedTuple):
    """What to run, in words and numbers alone."""

    case: str
    name: str
    """Of a method of the paper, or of one of the library's defaults."""
    beyond_paper: bool
    splits: tuple[int, ...]
    iterations: int

    @property
    def size(self) -> int:
        """What its progress counts up to."""
        return len(self.splits) * (1 if self.beyond_paper else self.iterations)


ReportProgress = Callable[[Job, int], None]
"""Called with a job and how far it is."""


def perform(job: Job, report_progress: ReportProgress) -> tuple[Any, ...]:
    """A `Run` or an `Ending` for every split."""
    case = _case(job.case)
    found = []
    if job.beyond_paper:
        default = next(default for default in beyond.DEFAULTS if default.name == job.name)
        for number, split in enumerate(job.splits):
            found.append(beyond.run(case, default, case.splits[split]))
            report_progress(job, number + 1)
        return tuple(found)
    scheme = next(entry for entry in ENTRIES if entry.name == job.name).make(case)
    for number, split in enumerate(job.splits):
        fold = runner.make_fold(case, case.splits[split])
        before = number * job.iterations
        advanced = functools.partial(_tell_more, report_progress, job, before)
        found.append(runner.run(fold, scheme, job.iterations, case.density_floor, case.compile_quickly, advanced))
    return tuple(found)


def _tell_more(report_progress: ReportProgress, job: Job, before: int, iterations: int) -> None:
    report_progress(job, before + iterations)


@functools.cache
def _case(name: str) -> Case:
    return CASES[name]()


# Several processes ------------------------------------------------------------------------------------

_messages: Any = None


def perform_all(
    jobs: Sequence[Job], processes: int, report_progress: ReportProgress, done: Callable[[Job, tuple[Any, ...]], None]
) -> list[tuple[Any, ...]]:
    """The results of all jobs, in their order; `done` is called with each as soon as it is there."""
    count = min(processes, len(jobs))
    if count <= 1:
        return [_and_say_so(job, perform(job, report_progress), done) for job in jobs]
    # A forked process would inherit JAX's locks without the threads that hold them.
    context = multiprocessing.get_context("spawn")
    messages = context.Queue()
    with ProcessPoolExecutor(count, context, _begin, (messages,)) as pool:
        futures = [pool.submit(_perform_there, number, job) for number, job in enumerate(jobs)]
        waiting = dict(zip(futures, jobs, strict=True))
        try:
            while waiting:
                _pass_on(messages, jobs, report_progress)
                for future in [future for future in waiting if future.done()]:
                    _and_say_so(waiting.pop(future), future.result(), done)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
        return [future.result() for future in futures]


def _and_say_so(job: Job, found: tuple[Any, ...], done: Callable[[Job, tuple[Any, ...]], None]) -> tuple[Any, ...]:
    done(job, found)
    return found


_THREADS = "16"


def _begin(messages: Any) -> None:
    global _messages
    _messages = messages
    # JAX's batched LAPACK calls wait, on a thread of XLA's, for other threads of XLA's: two calls at once on a machine
    # with two processors wait for each other for good, unless there are more threads than processors.
    os.environ.setdefault("NPROC", _THREADS)


def _perform_there(number: int, job: Job) -> tuple[Any, ...]:
    found = perform(job, lambda _, done: _messages.put((number, done)))
    _messages.put((number, job.size))
    # The next job needs other programs.
    jax.clear_caches()
    return found


def _pass_on(messages: Any, jobs: Sequence[Job], report_progress: ReportProgress) -> None:
    try:
        number, done = messages.get(timeout=0.2)
    except queue.Empty:
        return
    report_progress(jobs[number], done)
