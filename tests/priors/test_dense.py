"""The dense prior against inverses and determinants in NumPy, for sites of every signature."""

import equinox as eqx
import jax
import numpy as np
import pytest

import newtongp as ng
from newtongp.numerics.gaussian import Sites
from newtongp.priors.dense import GP

RNG = np.random.default_rng(11)


def sites_of(kind, n, d):
    """Random sites: PSD, singular, missing rows, or indefinite but with a proper posterior."""
    linear = RNG.normal(size=(n, d))
    root = RNG.normal(size=(n, d, d))
    precision = root @ np.swapaxes(root, 1, 2)
    if kind == "missing":
        linear[::2], precision[::2] = 0.0, 0.0
    if kind == "singular":
        precision = root[:, :, :1] @ np.swapaxes(root[:, :, :1], 1, 2)
    if kind == "indefinite":
        precision[::3] = -0.15 * np.eye(d) + 0.05 * root[::3][:, :, :1] @ np.swapaxes(root[::3][:, :, :1], 1, 2)
    return Sites(linear, precision)


def dense_answer(prior, x, sites):
    """(m, C, log ∫ p ∏ t) over (row, latent) pairs, from the definition."""
    n, d = sites.linear.shape
    with jax.enable_x64(True):
        workspace = prior.prepare(jax.numpy.asarray(x))
        grams, mean = np.asarray(workspace.gram), np.asarray(workspace.mean).reshape(-1)
    gram = np.zeros((n * d, n * d))
    precision = np.zeros((n * d, n * d))
    for k in range(d):
        gram[k::d, k::d] = grams[k]
    for i in range(n):
        precision[i * d : (i + 1) * d, i * d : (i + 1) * d] = sites.precision[i]
    linear = sites.linear.reshape(-1)
    matrix = np.eye(n * d) + precision @ gram
    covariance = gram @ np.linalg.inv(matrix)
    tilt = linear - precision @ mean
    shift = covariance @ tilt
    sign, log_det = np.linalg.slogdet(matrix)
    assert sign > 0
    log_z = -0.5 * log_det + linear @ mean - 0.5 * mean @ precision @ mean + 0.5 * tilt @ shift
    return mean + shift, covariance, log_z


@pytest.mark.cases(
    others="thorough",
)
@pytest.mark.parametrize("latents", [1, 2])
@pytest.mark.parametrize("kind", ["psd", "missing", "singular", "indefinite"])
@pytest.mark.parametrize("repeated", [False, True])
def test_conditioning_is_what_the_definition_says(latents, kind, repeated):
    n = 9
    x = RNG.uniform(0.0, 4.0, (n, 1))
    if repeated:
        x[4:6] = x[2]
    kernels = [ng.kernels.Matern32(1.0, 1.5), ng.kernels.RBF(0.7, 0.5)][:latents]
    prior = GP(ng.kernels.Independent(kernels), mean=ng.means.Independent([0.4, -1.0][:latents]))
    sites = sites_of(kind, n, latents)
    mean, covariance, log_z = dense_answer(prior, x, sites)
    with jax.enable_x64(True):
        workspace = prior.prepare(jax.numpy.asarray(x))
        stepwise = workspace.marginals(jax.tree.map(jax.numpy.asarray, sites))
        posterior = prior.condition(workspace, jax.tree.map(jax.numpy.asarray, sites))
        joint = posterior.joint(jax.numpy.asarray(x))
        again = posterior.predict(jax.numpy.asarray(x))
    blocks = np.stack([covariance[i * latents : (i + 1) * latents, i * latents : (i + 1) * latents] for i in range(n)])
    assert bool(stepwise.proper)
    for found in (stepwise.marginals, posterior.marginals, again):
        np.testing.assert_allclose(found.mean, mean.reshape(n, latents), atol=1e-11)
        np.testing.assert_allclose(found.covariance, blocks, atol=1e-11)
    np.testing.assert_allclose(joint.covariance, covariance, atol=1e-11)
    log_site = np.sum(sites.linear * mean.reshape(n, latents)) - 0.5 * np.einsum(
        "ni,nij,nj->", mean.reshape(n, latents), sites.precision, mean.reshape(n, latents)
    )
    assert float(stepwise.distance + stepwise.log_det) == pytest.approx(2.0 * (log_site - log_z), abs=1e-9)
    assert float(posterior.log_normaliser) == pytest.approx(log_z, abs=1e-10)


@pytest.mark.slow
def test_an_improper_posterior_is_called_improper_even_with_an_even_number_of_negative_directions():
    x = np.array([[0.0], [10.0]])
    prior = GP(ng.kernels.RBF())
    sites = Sites(np.zeros((2, 1)), np.full((2, 1, 1), -2.0))
    with jax.enable_x64(True):
        found = prior.prepare(jax.numpy.asarray(x)).marginals(jax.tree.map(jax.numpy.asarray, sites))
    # The determinant of I + ΛK is positive here: only the definiteness tells.
    assert np.linalg.det(np.eye(2) - 2.0 * np.eye(2)) > 0
    assert not bool(found.proper)


@pytest.mark.parametrize("precision", [1e4, 1e8, 1e11])
def test_precise_data_keep_their_digits(precision):
    x = np.linspace(0.0, 3.0, 12)
    y = np.sin(x)
    model = ng.Model(ng.GP(ng.kernels.Matern12(1.0)), ng.likelihoods.Gaussian(1.0 / precision))
    result = ng.infer(model, x, y, ng.VI(), ng.Constant(1.0))
    gram = np.exp(-np.abs(x[:, None] - x[None, :]))
    mean = gram @ np.linalg.solve(gram + np.eye(12) / precision, y)
    np.testing.assert_allclose(result.marginals.mean[:, 0], mean, atol=1e-9)
    assert np.all(result.marginals.covariance > 0.0)


@pytest.mark.cases(
    thorough=[
        "missing-1",
        "indefinite-2",
        "indefinite-1",
        "singular-2",
        "singular-1",
        "missing-2",
        "psd-2",
        "psd-1",
        "psd-1",
        "psd-2",
        "missing-2",
        "singular-2",
        "indefinite-2",
    ],
    others="slow",
)
@pytest.mark.parametrize("latents", [1, 2])
@pytest.mark.parametrize("kind", ["psd", "missing", "singular", "indefinite"])
def test_derivatives_of_conditioning_are_those_of_differences(latents, kind):
    x = RNG.uniform(0.0, 4.0, (7, 1))
    kernels = [ng.kernels.Matern32(1.0, 1.5), ng.kernels.RBF(0.7, 0.5)][:latents]
    with jax.enable_x64(True):
        workspace = GP(ng.kernels.Independent(kernels)).prepare(jax.numpy.asarray(x))
        start = workspace, jax.tree.map(jax.numpy.asarray, sites_of(kind, 7, latents))
        leaves, tree = jax.tree.flatten(start)
        moves = [RNG.normal(size=leaf.shape) for leaf in leaves]
        symmetric = [0.5 * (m + np.swapaxes(m, -1, -2)) if m.ndim == 3 else m for m in moves]
        direction = jax.tree.unflatten(tree, symmetric)
        weights = RNG.normal(size=(7, latents)), RNG.normal(size=(7, latents, latents))

        @jax.jit
        def number(at):
            space, sites = at
            found = space.marginals(sites)
            return (
                (weights[0] * found.marginals.mean).sum()
                + (weights[1] * found.marginals.covariance).sum()
                + 0.3 * found.distance
                + 0.7 * found.log_det
                + 0.2 * space.log_normaliser(sites)
            )

        def along(step):
            return number(jax.tree.map(lambda leaf, move: leaf + step * move, start, direction))

        slope = jax.grad(number)(start)
        found = sum(float((a * b).sum()) for a, b in zip(jax.tree.leaves(slope), symmetric, strict=True))
        step = 1e-5
        differences = (8.0 * (along(step) - along(-step)) - (along(2 * step) - along(-2 * step))) / (12.0 * step)
    assert found == pytest.approx(float(differences), rel=1e-7, abs=1e-7)


@pytest.mark.parametrize("at_once", [False, True])
def test_predictions_without_negative_sites_need_no_factors_for_them(monkeypatch, at_once):
    x = np.linspace(0.0, 10.0, 30)
    result = ng.infer(ng.Model(ng.GP("matern32"), "poisson"), x, np.arange(30) % 4)
    posterior, new = result.posterior, np.linspace(-1.0, 12.0, 7)[:, None]
    query = posterior.joint if at_once else posterior.predict
    assert posterior._as_needed().overlap is None
    found = query(new)
    monkeypatch.setattr(type(posterior), "_as_needed", lambda self: self)
    wanted = query(new)
    np.testing.assert_allclose(found.mean, wanted.mean, atol=1e-13)
    np.testing.assert_allclose(found.covariance, wanted.covariance, atol=1e-13)
    # With a negative site, they are needed.
    assert eqx.tree_at(lambda p: p.negative, posterior, posterior.positive)._as_needed().overlap is not None
