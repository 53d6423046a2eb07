"""Rows in batches, each where it is computed with."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from ..._runtime.devices import mesh_of_rows, whole_share
from ...inputs.chunks import Batch, Rows
from ...likelihoods.base import Likelihood
from .product import DeviceRows, on_devices

WHOLE_PASS = 2**13
"""Rows taken at a time where no batch size is given."""


class Batching(NamedTuple):
    """How the rows of a model are cut into batches."""

    rows: Rows
    likelihood: Likelihood
    size: int
    """Rows per batch; the last one of a pass may have fewer."""
    filled: int
    """Rows per batch with those that are filled in, so that every device gets as many."""
    mesh: Any
    """The devices that share the rows; None if there is only one."""

    @classmethod
    def of(cls, rows: Rows, likelihood: Likelihood, size: int) -> "Batching":
        """Batches of so many rows, or of all if there are fewer."""
        mesh, size = mesh_of_rows(), min(rows.count, size)
        return cls(rows, likelihood, size, whole_share(size, mesh), mesh)

    @property
    def per_pass(self) -> int:
        """Batches per pass over the data."""
        return -(-self.rows.count // self.size)

    @property
    def observed(self) -> float:
        """Rows with some y, and at least one."""
        return float(max(1, self.rows.observed))

    def batches(self, rng: np.random.Generator | None, skip: int = 0) -> Iterator[tuple[Batch, DeviceRows]]:
        """One pass, in the order of the data or in a random one, without the first few batches."""
        for number, batch in enumerate(self.rows.batches(self.size, rng, self.filled)):
            if number >= skip:
                yield batch, on_devices(batch, self.likelihood, self.mesh)
