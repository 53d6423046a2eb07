"""The progress bar of runs in batches, and the error if one of several processes has ended."""

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import jax


@contextlib.contextmanager
def explained() -> Iterator[None]:
    """Explain the error of the runtime, which is about sockets, if one of several processes has ended."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if jax.process_count() == 1:
            raise
        raise RuntimeError(
            f"inference on {jax.process_count()} processes has ended in process {jax.process_index()}, most likely "
            "because another one has ended: see the last output of that one, and start all of them again"
        ) from error


class RowProgress:
    """A progress bar with the number of rows per second, if `wanted`."""

    def __init__(self, wanted: bool, rows: int, passes: int):
        self.wanted, self.rows, self.passes = wanted, rows, passes
        self.seen, self.done, self.start = 0, 0, time.perf_counter()
        self.bar: Any = None

    def __enter__(self) -> "RowProgress":
        if self.wanted:
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

            self.bar = Progress(TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
            self.task = self.bar.add_task("inference", total=self.rows * self.passes)
            self.bar.start()
        return self

    def __exit__(self, *error: Any) -> None:
        if self.bar is not None:
            self.bar.stop()

    def saw(self, rows: int) -> None:
        self.seen += rows
        if self.bar is not None:
            self.bar.update(self.task, completed=min(self.seen, self.rows * self.passes))

    def passed(self, energy: float) -> None:
        self.done += 1
        if self.bar is not None:
            rate = self.seen / (time.perf_counter() - self.start)
            self.bar.update(self.task, description=f"pass {self.done}, energy {energy:.6g}, {rate:,.0f} rows/s")
