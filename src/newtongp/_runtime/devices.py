"""Rows on several devices, of one process or of many (`jax.distributed`).

Every process runs the same program on the same batches; of each batch a device gets its share of the rows. What does
not belong to rows, the M × M sums and what is made of them, is the same everywhere: XLA adds up the shares.
"""

from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec


def mesh_of_rows() -> Mesh | None:
    """All devices there are, in a row; None if there is only one."""
    return Mesh(np.array(jax.devices()), ("rows",)) if jax.device_count() > 1 else None


def whole_share(size: int, mesh: Mesh | None) -> int:
    """The number of rows to which so many are filled up, so that every device gets as many."""
    return size if mesh is None else -(-size // mesh.size) * mesh.size


def spread(array: Any, mesh: Mesh | None) -> Any:
    """An array with one entry per row, of which each device holds a share."""
    return array if mesh is None else _placed(array, NamedSharding(mesh, PartitionSpec("rows")))


def everywhere(tree: Any, mesh: Mesh | None) -> Any:
    """Arrays of which each device holds all."""
    if mesh is None:
        return tree
    return jax.tree.map(lambda leaf: _placed(leaf, NamedSharding(mesh, PartitionSpec())), tree)


def _placed(array: Any, sharding: NamedSharding) -> Any:
    host = np.asarray(array)
    return jax.make_array_from_callback(host.shape, sharding, lambda index: host[index])


def kept_everywhere(tree: Any, mesh: Mesh | None) -> Any:
    """Inside a compiled function: results that each device is to hold all of."""
    if mesh is None:
        return tree
    return jax.lax.with_sharding_constraint(tree, NamedSharding(mesh, PartitionSpec()))
