"""Many latents: the same numbers as one latent at a time, by programs whose size does not depend on their number."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import newtongp as ng
from newtongp import kernels
from newtongp.inference.loop import expand_rows
from newtongp.inference.problem import Setup
from newtongp.kernels.multilatent import over_latents
from newtongp.numerics import small
from newtongp.numerics.gaussian import Sites
from newtongp.priors import weight_space

RNG = np.random.default_rng(3)
X = RNG.normal(size=(13, 2))


@pytest.fixture(autouse=True)
def strict_double():
    with jax.enable_x64(True), jax.numpy_rank_promotion("raise"):
        yield


@pytest.mark.slow
@pytest.mark.thorough
def test_kernels_of_the_same_structure_are_stacked_and_others_keep_their_place():
    parts = [
        kernels.RBF(1.0, 2.0),
        kernels.Matern32([0.5, 2.0]),
        kernels.RBF(0.3),
        kernels.Matern32(1.0),
        kernels.RBF(2.0) + kernels.Constant(0.1),
        kernels.RBF(0.7).on(1),
    ]
    independent = kernels.Independent(parts)
    groups = over_latents(lambda part: kernels.diagonal(part, X), independent)
    assert [group.latents for group in groups] == [[0, 2], [1], [3], [4], [5]]
    for whole, one in ((kernels.grams, kernels.gram), (lambda k, x, _: kernels.diagonals(k, x), None)):
        found = whole(independent, X, X)
        for part, ours in zip(parts, found, strict=True):
            alone = kernels.gram(part, X, X) if one is not None else kernels.diagonal(part, X)
            np.testing.assert_allclose(ours, alone, rtol=1e-14, atol=1e-300)


@pytest.mark.slow
def test_a_kernel_that_latents_share_is_evaluated_once():
    weights = RNG.normal(size=(3, 13, 4))

    def prepared(lengthscale, shared):
        kernel = kernels.RBF(lengthscale, 2.0)
        parts = [kernel] * 3 if shared else [kernels.RBF(1.0 * lengthscale, 2.0) for _ in range(3)]
        prior = ng.SparseGP(kernels.Independent(parts), X[:4])
        return prior.prepare(prior.layout(X).inputs)

    def value(lengthscale, shared):
        return jnp.sum(weights * prepared(lengthscale, shared).features)

    for once in (True, False):
        whitening = prepared(0.7, once).projection.whitening
        assert all((each is whitening[0]) == once for each in whitening[1:])
    np.testing.assert_allclose(prepared(0.7, True).features, prepared(0.7, False).features, rtol=1e-12)
    slopes = [jax.grad(value)(0.7, shared) for shared in (True, False)]
    np.testing.assert_allclose(*slopes, rtol=1e-10)


@pytest.mark.slow
@pytest.mark.thorough
def test_latents_with_different_numbers_of_inducing_inputs():
    prior = ng.SparseGP(
        kernels.Independent([kernels.RBF(1.0), kernels.RBF(2.0), kernels.RBF(0.5)]), [X[:4], X[:6], X[:4]]
    )
    workspace = prior.prepare(prior.layout(X).inputs)
    for d, (part, z) in enumerate(zip(prior.kernel.kernels, (X[:4], X[:6], X[:4]), strict=True)):
        cross = np.asarray(kernels.gram(part, X, z))
        explained = cross @ np.linalg.solve(np.asarray(kernels.gram(part, z, z)), cross.T)
        np.testing.assert_allclose(workspace.features[d] @ workspace.features[d].T, explained, atol=1e-9)


@pytest.mark.cases(thorough=["False-10000000.0", "True-1.0", "False-1.0"], others="slow")
@pytest.mark.parametrize(
    ("shared", "scale"),
    [pytest.param(False, 1.0, marks=pytest.mark.slow), pytest.param(True, 1.0, marks=pytest.mark.slow), (False, 1e7)],
)
def test_conditioning_of_five_latents_against_one_large_gaussian(shared, scale):
    rows, latents, size = 9, 5, 3
    features = RNG.normal(size=(1 if shared else latents, rows, size))
    mean, linear = RNG.normal(size=(2, rows, latents))
    roots = RNG.normal(size=(rows, latents, latents))
    precision = scale * (roots @ np.swapaxes(roots, 1, 2) - 0.01 * np.eye(latents))
    whole = np.zeros((rows * latents, latents * size))
    joint = np.zeros((rows * latents, rows * latents))
    for n in range(rows):
        joint[n * latents : (n + 1) * latents, n * latents : (n + 1) * latents] = precision[n]
        for d in range(latents):
            whole[n * latents + d, d * size : (d + 1) * size] = features[0 if shared else d, n]
    inverse = np.linalg.inv(np.eye(latents * size) + whole.T @ joint @ whole)
    right = whole.T @ (linear.ravel() - joint @ mean.ravel())
    arguments = tuple(map(jnp.asarray, (features, mean, linear, precision)))
    solved = jax.jit(weight_space.solve)(*arguments[:2], Sites(*arguments[2:]))
    np.testing.assert_allclose(solved.mean.ravel(), inverse @ right, rtol=1e-6 * max(1.0, scale / 1e6), atol=1e-12)
    covariance = whole @ inverse @ whole.T
    blocks = [covariance[n * latents : (n + 1) * latents, n * latents : (n + 1) * latents] for n in range(rows)]
    found = weight_space.covariances(solved.half, jnp.asarray(features))
    np.testing.assert_allclose(found, blocks, rtol=1e-6, atol=1e-7 / scale)

    def by_solving(*arguments):
        features, mean, linear, precision = arguments
        solved = weight_space.solve(features, mean, Sites(linear, precision))
        return weight_space._log_normaliser(mean, linear, precision, solved)

    ours, theirs = (
        jax.jit(jax.grad(function, argnums=(0, 1, 2, 3)))(*arguments)
        for function in (weight_space.log_normaliser, by_solving)
    )
    for one, other in zip(ours, theirs, strict=True):
        if one.shape == precision.shape:
            one, other = (part + np.swapaxes(part, 1, 2) for part in (one, other))
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-8 * np.max(np.abs(other)))


@pytest.mark.parametrize("size", [3, 7])
def test_small_matrices_in_loops_and_unrolled(size):
    root = np.tril(RNG.normal(size=(20, size, size))) + 2.0 * np.eye(size)
    matrices = root @ np.swapaxes(root, 1, 2)
    np.testing.assert_allclose(
        jax.jit(jax.vmap(small.small_root))(matrices), np.linalg.cholesky(matrices), rtol=1e-12, atol=1e-13
    )
    right = RNG.normal(size=(20, size, 2))
    solved = jax.jit(jax.vmap(small.small_solve_psd))(matrices, right)
    np.testing.assert_allclose(solved, np.linalg.solve(matrices, right), rtol=1e-9, atol=1e-10)
    singular = root[:, :, :1] @ np.swapaxes(root[:, :, :1], 1, 2)
    rebuilt = jax.jit(jax.vmap(small.small_root))(singular)
    np.testing.assert_allclose(rebuilt @ jnp.swapaxes(rebuilt, 1, 2), singular, atol=1e-6)


def equations(jaxpr):
    """The number of equations, with those of all inner programs."""
    inner = [value for eqn in jaxpr.eqns for value in jax.tree.leaves(eqn.params, is_leaf=_is_program)]
    return len(jaxpr.eqns) + sum(equations(getattr(value, "jaxpr", value)) for value in inner if _is_program(value))


def _is_program(value):
    return hasattr(value, "eqns") or hasattr(value, "jaxpr")


def program_size(classes):
    x, y = np.concatenate([X] * 2), np.arange(26) % classes
    prior = ng.SparseGP(kernels.Independent([kernels.RBF(1.0) for _ in range(classes)]), X[:5])
    setup = Setup(ng.Model(prior, ng.likelihoods.Softmax(classes)), x, y)
    sites = Sites.constant(setup.bound.y.shape[0], classes, 0.1)
    return equations(
        jax.make_jaxpr(lambda bound, sites: expand_rows(bound.problem(), ng.VI(), sites))(setup.bound, sites).jaxpr
    )


def test_programs_do_not_grow_with_the_number_of_classes():
    """Stacking one number per latent is all that may."""
    few, many = program_size(6), program_size(16)
    assert many - few <= 20 * 10


def test_inducing_inputs_from_clusters_are_shared_by_all_latents():
    prior = ng.SparseGP(kernels.Independent([kernels.RBF(1.0), kernels.RBF(1.0)]), 3, selection="kmeans")
    chosen = prior.layout(X).inputs.inducing
    assert prior.with_inducing(chosen).inducing[0].shape == (3, 2)
