"""Rows in batches, on their devices."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from ..._runtime.devices import mesh_of_rows, whole_share
from ...inputs.chunks import Batch, Rows
from ...likelihoods.base import Likelihood
from ...numerics.size_classes import size_class
from .product import DeviceRows, on_devices

WHOLE_PASS = 2**13
"""Rows per batch if no batch size is given."""


def batch_class(rows: int) -> int:
    """The size class of a batch.

    >>> [batch_class(rows) for rows in (20, 200, 1000, 8192)]
    [32, 224, 1024, 8192]
    """
    return size_class(rows, smallest=32, step=32)


class Batching(NamedTuple):
    """The division of the rows into batches."""

    rows: Rows
    likelihood: Likelihood
    size: int
    """Rows per batch; the last one of a pass may have fewer."""
    filled: int
    """Rows per batch including padding, which fills up a size class and gives every device equally many."""
    mesh: Any
    """The devices that share the rows; None if there is only one."""

    @classmethod
    def of(cls, rows: Rows, likelihood: Likelihood, size: int) -> "Batching":
        """Batches of `size` rows, or of all rows if there are fewer."""
        mesh, size = mesh_of_rows(), min(rows.count, size)
        return cls(rows, likelihood, size, whole_share(batch_class(size), mesh), mesh)

    @property
    def per_pass(self) -> int:
        """Batches per pass over the data."""
        return -(-self.rows.count // self.size)

    @property
    def observed(self) -> float:
        """The number of rows with some observed y, or the sum of their weights, at least 1."""
        return max(1.0, self.rows.observed)

    def batches(self, rng: np.random.Generator | None, skip: int = 0) -> Iterator[tuple[Batch, DeviceRows]]:
        """One pass in the order of the data, or in a random order with `rng`, without the first `skip` batches."""
        for number, batch in enumerate(self.rows.batches(self.size, rng, self.filled)):
            if number >= skip:
                yield batch, on_devices(batch, self.likelihood, self.mesh)
