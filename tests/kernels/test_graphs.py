"""Kernels over integer codes: categories, and the nodes of a graph, against NumPy, SciPy and the definitions."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from scipy import sparse

import newtongp as ng
from newtongp import kernels

EDGES = [(0, 1), (1, 2), (2, 3), (3, 0), (0, 2), (5, 6), (6, 7)]
NODES = 8
"""Two components, and node 4 without neighbours."""
COMPONENTS = ([0, 1, 2, 3], [5, 6, 7])


def laplacian(edges=EDGES, nodes=NODES):
    weights = np.zeros((nodes, nodes))
    for i, j in edges:
        weights[i, j] = weights[j, i] = 1.0
    return np.diag(weights.sum(axis=1)) - weights


def gram_of(kernel, x1, x2=None):
    x1 = np.asarray(x1, float).reshape(-1, 1)
    return np.asarray(jax.jit(kernels.gram)(kernel, x1, x1 if x2 is None else np.asarray(x2, float).reshape(-1, 1)))


def test_category_is_one_effect_per_level():
    codes = np.array([3.0, -1.0, 3.0, 7.0])
    np.testing.assert_array_equal(gram_of(kernels.Category(0.3), codes), 0.3 * (codes[:, None] == codes))


def test_category_in_sums_products_and_columns():
    x = np.array([[0.1, 2.0], [0.4, 2.0], [0.9, 5.0]])
    kernel = kernels.Category(0.3).on(1) + kernels.Category(2.0).on(1) * kernels.RBF(0.5).on(0)
    same = x[:, 1][:, None] == x[:, 1]
    smooth = np.exp(-0.5 * ((x[:, 0][:, None] - x[:, 0]) / 0.5) ** 2)
    np.testing.assert_allclose(jax.jit(kernels.gram)(kernel, x, x), same * (0.3 + 2.0 * smooth), rtol=1e-12)


@pytest.mark.slow
def test_new_rows_share_the_effect_of_their_level():
    y = np.array([1.0, 1.4, -2.0, np.nan])
    model = ng.Model(ng.GP(kernels.Category(2.0)), ng.likelihoods.Gaussian(0.5))
    latent = ng.infer(model, [4, 4, 9, 9], y).predict([4, 9, 11]).latent
    # A level with n rows has the mean of its rows, shrunk by n / (n + noise / variance).
    np.testing.assert_allclose(np.ravel(latent.mean), [1.2 * 2.0 / 2.25, -2.0 / 1.25, 0.0], rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(np.ravel(latent.covariance), [0.5 / 2.25, 0.5 / 1.25, 2.0], rtol=1e-12)


@pytest.mark.slow
def test_categories_are_exact_with_one_inducing_input_per_level():
    rng = np.random.default_rng(0)
    codes = rng.integers(6, size=40)
    counts = rng.poisson(np.exp(rng.normal(size=6)[codes]))
    kernel = kernels.Category(0.8)
    results = [
        ng.infer(ng.Model(prior, ng.likelihoods.Poisson()), codes, counts)
        for prior in (ng.GP(kernel), ng.SparseGP(kernel, inducing=20))
    ]
    assert abs(results[0].energy - results[1].energy) < 1e-8
    np.testing.assert_allclose(*(result.marginals.mean for result in results), atol=1e-7)


@pytest.mark.parametrize("kind", ["icar", "bym2", "leroux"])
def test_graph_against_generalised_inverses(kind):
    scaled = laplacian()
    covariance = np.zeros((NODES, NODES))
    for nodes in COMPONENTS:
        part = np.ix_(nodes, nodes)
        inverse = np.linalg.pinv(scaled[part])
        scale = scipy.stats.gmean(np.diag(inverse))
        covariance[part], scaled[part] = inverse / scale, scaled[part] * scale
    covariance[4, 4] = scaled[4, 4] = 1.0
    expected = {
        "icar": 1.7 * covariance,
        "bym2": 1.7 * (0.3 * np.eye(NODES) + 0.7 * covariance),
        "leroux": 1.7 * np.linalg.inv(0.3 * np.eye(NODES) + 0.7 * scaled),
    }[kind]
    share = {"icar": {}, "bym2": {"phi": 0.7}, "leroux": {"rho": 0.7}}[kind]
    kernel = kernels.Graph(EDGES, kind, variance=1.7, nodes=NODES, **share)
    np.testing.assert_allclose(gram_of(kernel, np.arange(NODES)), expected, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(kernel.covariance(), expected, rtol=1e-12, atol=1e-13)
    codes = [7, 2, 2, 4]
    np.testing.assert_allclose(gram_of(kernel, codes, [0, 2]), expected[codes][:, [0, 2]], rtol=1e-12, atol=1e-13)


def test_intrinsic_effects_sum_to_zero_in_every_component():
    covariance = np.asarray(kernels.Graph(EDGES, "icar", nodes=NODES).covariance())
    for nodes in COMPONENTS:
        np.testing.assert_allclose(covariance[nodes].sum(axis=0), 0.0, atol=1e-14)
        np.testing.assert_allclose(np.exp(np.mean(np.log(np.diag(covariance)[nodes]))), 1.0, rtol=1e-13)


def test_leroux_has_the_precision_of_the_literature_on_a_connected_graph():
    edges, rho = [(0, 1), (1, 2), (2, 3), (3, 0), (0, 2)], 0.6
    kernel = kernels.Graph(edges, "leroux", rho=rho)
    r = laplacian(edges, 4)
    scale = scipy.stats.gmean(np.diag(np.linalg.pinv(r)))
    # (1 − ρ) I + ρ scale R, as a multiple of (1 − ρ') I + ρ' R.
    total = 1.0 - rho + rho * scale
    plain = np.linalg.inv((1.0 - rho) / total * np.eye(4) + rho * scale / total * r)
    np.testing.assert_allclose(kernel.covariance(), plain / total, rtol=1e-12)


def weights_object(**fields):
    return types.SimpleNamespace(**fields)


def test_the_same_graph_in_every_form():
    matrix = np.diag(np.diag(laplacian())) - laplacian()
    neighbours = {f"n{i}": [f"n{j}" for j in np.flatnonzero(row)] for i, row in enumerate(matrix)}
    weights = {label: [1.0] * len(others) for label, others in neighbours.items()}
    forms = [
        np.array(EDGES)[:, ::-1],
        [*EDGES, (1, 0)],
        matrix,
        matrix.astype(bool),
        sparse.csr_matrix(matrix),
        sparse.coo_array(matrix),
        neighbours,
        weights_object(neighbors=neighbours, weights=weights),
        weights_object(sparse=sparse.csr_matrix(matrix)),
    ]
    expected = kernels.Graph(EDGES, "icar", nodes=NODES).structure
    for form in forms:
        pairs = not isinstance(form, dict | types.SimpleNamespace) and np.shape(form)[-1:] == (2,)
        kernel = kernels.Graph(form, "icar", nodes=NODES if pairs else None)
        np.testing.assert_allclose(kernel.structure, expected, atol=1e-14)


def test_weights_of_edges_count():
    weights = np.array([[0.0, 2.0, 0.0], [2.0, 0.0, 0.5], [0.0, 0.5, 0.0]])
    inverse = np.linalg.pinv(np.diag(weights.sum(axis=1)) - weights)
    expected = inverse / scipy.stats.gmean(np.diag(inverse))
    np.testing.assert_allclose(kernels.Graph(weights, "icar").structure, expected, rtol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["bym2", "leroux"])
def test_derivatives_of_graphs(kind):
    x = np.arange(NODES, dtype=float)[:, None]
    name = "phi" if kind == "bym2" else "rho"

    def total(share):
        kernel = ng.parameters.names.put(kernels.Graph(EDGES, kind, nodes=NODES), (name,), share)
        return jnp.sum(jnp.sin(kernels.gram(kernel, x, x)))

    step = 1e-6
    numerical = (total(0.4 + step) - total(0.4 - step)) / (2.0 * step)
    np.testing.assert_allclose(jax.grad(total)(0.4), numerical, rtol=1e-7)


@pytest.mark.parametrize(
    ("adjacency", "options", "message"),
    [
        ([(0, 1)], {"kind": "car"}, "kind must be one of 'bym2', 'icar', 'leroux', got 'car'"),
        ("abc", {}, "adjacency must be pairs of neighbouring nodes .* got 'abc'"),
        (np.zeros((2, 3)), {}, r"adjacency must be pairs .* got an array of shape \(2, 3\)"),
        ([(0, 1), (1.5, 2)], {}, r"pair 1 is \[1.5, 2.0\]"),
        ([(0, 1), (-1, 2)], {}, "pairs of node numbers from 0, but pair 1"),
        ([(0, 1), (2, 2)], {}, "node 2 is its own neighbour"),
        ([(0, 1), (2, 3)], {"nodes": 3}, "nodes is 3, but adjacency has node 3"),
        (np.ones((3, 3)) - np.eye(3), {"nodes": 4}, r"nodes is 4, but adjacency has 3 node\(s\)"),
        (np.triu(np.ones((3, 3)), 1), {}, r"symmetric, but the weights of nodes \(0, 1\) and \(1, 0\) are 1 and 0"),
        (np.eye(3), {}, "node 0 is its own neighbour"),
        (np.eye(3) - np.ones((3, 3)), {}, r"positive weights, but that of nodes \(0, 1\) is -1"),
        (np.full((3, 3), np.nan), {}, "adjacency must be finite"),
        ({0: [1], 1: [0, 5]}, {}, "5 is a neighbour of 1, but has no such node"),
        (sparse.csr_array(np.ones((2, 3))), {}, r"square matrix, one row per node, got shape \(2, 3\)"),
        ([(0, 1)], {"kind": "icar", "phi": 0.5}, 'phi is a parameter of the kind "bym2", but kind is "icar"'),
        ([(0, 1)], {"rho": 0.5}, 'rho is a parameter of the kind "leroux", but kind is "bym2"'),
        ([(0, 1)], {"phi": 1.0}, "phi must be greater than 0 and less than 1"),
        ([(0, 1)], {"variance": 0.0}, "variance must be greater than 0"),
        (sparse.csr_array([[0, 1, 0], [1, 0, 1e-30], [0, 1e-30, 0]]), {}, "hardly connected"),
    ],
)
def test_wrong_graphs(adjacency, options, message):
    with pytest.raises(ValueError, match=message):
        kernels.Graph(adjacency, **options)


@pytest.mark.parametrize(
    ("kernel", "x", "message"),
    [
        (kernels.Category(), [0, 1.5], "Category works on integer codes, but row 1 of its column is 1.5"),
        (kernels.Category(), [0, 2.0**60], "row 1 .* whole numbers of at most 2.53"),
        (kernels.Graph(EDGES), [0, 0.5], "Graph works on integer codes, but row 1"),
        (kernels.Graph(EDGES), [0, 8], "Graph has the nodes 0 to 7, but row 1 of its column is 8"),
        (kernels.Graph(EDGES), [-1, 2], "Graph has the nodes 0 to 7, but row 0 of its column is -1"),
    ],
)
def test_wrong_codes(kernel, x, message):
    model = ng.Model(ng.GP(kernel), ng.likelihoods.Gaussian())
    with pytest.raises(ValueError, match=message):
        ng.infer(model, x, [0.0, 1.0])
    with pytest.raises(ValueError, match=message):
        kernel.on(1).check_values(np.column_stack([np.zeros(2), x]))


def test_codes_are_not_averaged():
    codes = np.arange(8).repeat(3)
    prior = ng.SparseGP(kernels.Graph(EDGES), inducing=4, selection="kmeans")
    with pytest.raises(ValueError, match='averages rows: use selection="greedy", since Graph works on integer codes'):
        ng.infer(ng.Model(prior, ng.likelihoods.Poisson()), codes, np.ones(24))


@pytest.mark.parametrize("kernel", [kernels.Category(), kernels.Graph(EDGES)], ids=["Category", "Graph"])
def test_one_column_and_no_order(kernel):
    with pytest.raises(ValueError, match=f"{type(kernel).__name__} works on one column of x, but x has 2"):
        kernel.check_inputs(2)
    with pytest.raises(ValueError, match=f"{type(kernel).__name__} has no state space form"):
        kernel.blocks()


def test_phi_prior_is_of_bym2_alone():
    with pytest.raises(ValueError, match='phi_prior is for the kind "bym2", but kind is "icar"'):
        kernels.Graph(EDGES, "icar").phi_prior()
