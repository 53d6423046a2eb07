"""Graphs that users give (pairs of neighbours, matrices, objects with neighbours) as edges, and their covariance."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from ..numerics.known import eigen_given
from ..validation.numbers import NotRealError, as_real

_ASYMMETRY, _SMALLEST = 1e-10, 1e-13


class Edges(NamedTuple):
    """An undirected graph: pairs of nodes (E, 2), the smaller one first, their weights, and the number of nodes."""

    pairs: np.ndarray
    weights: np.ndarray
    count: int


def read_edges(adjacency: Any, nodes: int | None) -> Edges:
    """The edges of a graph that a user gives.

    >>> read_edges([(0, 1), (2, 1)], None).pairs.tolist()
    [[0, 1], [1, 2]]
    """
    if hasattr(adjacency, "sparse") and sparse.issparse(adjacency.sparse):
        edges = _of_matrix(adjacency.sparse)
    elif isinstance(getattr(adjacency, "neighbors", None), Mapping):
        edges = _of_neighbours(adjacency.neighbors, getattr(adjacency, "weights", None))
    elif isinstance(adjacency, Mapping):
        edges = _of_neighbours(adjacency, None)
    elif sparse.issparse(adjacency):
        edges = _of_matrix(adjacency)
    else:
        edges = _of_array(adjacency, nodes)
    if nodes is not None and edges.count != nodes:
        raise ValueError(f"nodes is {nodes}, but adjacency has {edges.count} node(s): leave nodes out")
    return edges


def _of_array(adjacency: Any, nodes: int | None) -> Edges:
    try:
        array: Any = as_real(adjacency)
    except NotRealError:
        array = np.zeros(0)
    if array.ndim != 2 or not (array.shape[1] == 2 or array.shape[0] == array.shape[1]):
        raise ValueError(
            f"adjacency must be pairs of neighbouring nodes such as [(0, 1), (1, 2)], a square matrix, or an object "
            f"with `neighbors` or `sparse`, got {_described(adjacency, array)}"
        )
    return _of_pairs(array, nodes) if array.shape[1] == 2 else _of_matrix(sparse.coo_array(array))


def _described(given: Any, array: np.ndarray) -> str:
    return f"an array of shape {array.shape}" if array.size else repr(given)


def _of_pairs(array: np.ndarray, nodes: int | None) -> Edges:
    wrong = np.flatnonzero(np.any((array != np.round(array)) | (array < 0), axis=1))
    if wrong.size:
        raise ValueError(
            f"adjacency must hold pairs of node numbers from 0, but pair {wrong[0]} is {array[wrong[0]].tolist()}: "
            "number the nodes 0, 1, ... in the order of their codes"
        )
    count = int(array.max()) + 1 if nodes is None else nodes
    if np.any(array >= count):
        raise ValueError(f"nodes is {nodes}, but adjacency has node {int(array.max())}: nodes are numbered from 0")
    # A pair may be given in both directions, or twice.
    pairs = np.unique(np.sort(array.astype(np.int64), axis=1), axis=0)
    return _checked(pairs, np.ones(pairs.shape[0]), count)


def _of_matrix(matrix: Any) -> Edges:
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise ValueError(f"adjacency must be a square matrix, one row per node, got shape {matrix.shape}")
    entries: Any = sparse.csr_array(matrix, dtype=np.float64)
    entries.sum_duplicates()
    entries.eliminate_zeros()
    if not np.all(np.isfinite(entries.data)):
        raise ValueError("adjacency must be finite, but a weight is not: use 0 for nodes that are not neighbours")
    gap = abs(entries - entries.T).tocoo()
    if gap.nnz and gap.data.max() > _ASYMMETRY * abs(entries).max():
        worst = int(np.argmax(gap.data))
        i, j = int(gap.coords[0][worst]), int(gap.coords[1][worst])
        raise ValueError(
            f"adjacency must be symmetric, but the weights of nodes ({i}, {j}) and ({j}, {i}) are "
            f"{entries[i, j]:g} and {entries[j, i]:g}: give weights before rows are standardised (w.transform = 'o' in "
            "libpysal), or symmetrise it, as in np.maximum(W, W.T)"
        )
    upper = sparse.triu(entries).tocoo()
    pairs = np.stack([np.asarray(index, dtype=np.int64) for index in upper.coords], axis=1)
    order = np.lexsort((pairs[:, 1], pairs[:, 0]))
    return _checked(pairs[order], upper.data[order], entries.shape[0])


def _of_neighbours(neighbours: Mapping[Any, Any], weights: Mapping[Any, Any] | None) -> Edges:
    """From lists of neighbours by node; the nodes are numbered in the order of their keys."""
    number = {label: index for index, label in enumerate(neighbours)}
    rows, columns, values = [], [], []
    for label, others in neighbours.items():
        given = [1.0] * len(others) if weights is None else weights[label]
        for other, weight in zip(others, given, strict=True):
            if other not in number:
                raise ValueError(f"adjacency says that {other!r} is a neighbour of {label!r}, but has no such node")
            rows.append(number[label])
            columns.append(number[other])
            values.append(weight)
    return _of_matrix(sparse.coo_array((np.asarray(values, float), (rows, columns)), shape=(len(number),) * 2))


def _checked(pairs: np.ndarray, weights: np.ndarray, count: int) -> Edges:
    loops = np.flatnonzero(pairs[:, 0] == pairs[:, 1])
    if loops.size:
        raise ValueError(f"adjacency says that node {pairs[loops[0], 0]} is its own neighbour: leave that out")
    if np.any(weights < 0.0):
        worst = int(np.argmin(weights))
        raise ValueError(
            f"adjacency must have positive weights, but that of nodes {tuple(pairs[worst].tolist())} is "
            f"{weights[worst]:g}: give 1 for neighbours, or the strength of their connection"
        )
    return Edges(pairs, weights, count)


class Structure(NamedTuple):
    """The scaled intrinsic covariance of a graph, its eigenvalues and eigenvectors."""

    covariance: np.ndarray
    eigenvalues: np.ndarray
    vectors: np.ndarray


def scaled_structure(edges: Edges) -> Structure:
    """The covariance Σ of the intrinsic autoregression: the generalised inverse of the graph's Laplacian, scaled.

    In every connected component it is that of values that sum to zero, and the geometric mean of its diagonal is 1
    (Sørbye and Rue, 2014). A node without neighbours has variance 1 (Freni-Sterrantino, Ventrucci and Rue, 2018).
    """
    links = (edges.weights, (edges.pairs[:, 0], edges.pairs[:, 1]))
    half = sparse.coo_array(links, shape=(edges.count,) * 2).tocsr()
    number, member = sparse.csgraph.connected_components(half, directed=False)
    covariance, eigenvalues = np.zeros((edges.count,) * 2), np.ones(edges.count)
    vectors = np.eye(edges.count)
    for component in range(number):
        nodes = np.flatnonzero(member == component)
        if nodes.size == 1:
            covariance[nodes[0], nodes[0]] = 1.0
            continue
        weights = half[nodes][:, nodes].toarray()
        weights = weights + weights.T
        values, basis = eigen_given(np.diag(weights.sum(axis=1)) - weights)
        if values[1] <= _SMALLEST * values[-1]:
            raise ValueError(
                f"adjacency has weights so different that node {nodes[0]} and others are hardly connected: their "
                "effects would be undetermined. Leave out the smallest weights, or give 1 for all neighbours"
            )
        # The first eigenvector is constant up to rounding; exactly so, values sum to zero by construction.
        basis[:, 0] = 1.0 / np.sqrt(nodes.size)
        basis[:, 1:] -= basis[:, 1:].mean(axis=0)
        spread = np.concatenate([[0.0], 1.0 / values[1:]])
        part = (basis * spread) @ basis.T
        scale = np.exp(np.mean(np.log(np.diagonal(part))))
        covariance[np.ix_(nodes, nodes)] = 0.5 * (part + part.T) / scale
        eigenvalues[nodes], vectors[np.ix_(nodes, nodes)] = spread / scale, basis
    return Structure(covariance, eigenvalues, vectors)
