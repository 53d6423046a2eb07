"""State space forms: they have the kernel's covariance, and they are consistent processes."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from scipy.special import ive

from newtongp import kernels
from newtongp.kernels.bessel import scaled_bessel
from newtongp.kernels.stationary_blocks import RBF_ORDERS

M12, M32, M52, M72 = (
    kind(0.8, 1.7) for kind in (kernels.Matern12, kernels.Matern32, kernels.Matern52, kernels.Matern72)
)
COSINE = kernels.Cosine(0.7, 1.3)
PERIODIC = kernels.Periodic(1.1, 0.9, 1.4, harmonics=14)
LINEAR = kernels.Linear(0.6, centre=0.4)
BROWNIAN = kernels.Brownian(0.6, origin=-9.0)
INTEGRATED = kernels.IntegratedBrownian(0.6, origin=-9.0)

EXACT = {
    "Constant": kernels.Constant(0.7),
    "White": kernels.White(0.7),
    "Linear": LINEAR,
    "Brownian": BROWNIAN,
    "IntegratedBrownian": INTEGRATED,
    "IntegratedMatern12": kernels.IntegratedMatern12(1.5, 0.6, origin=-9.0),
    "Matern12": M12,
    "Matern32": M32,
    "Matern52": M52,
    "Matern72": M72,
    "Cosine": COSINE,
    "Periodic": PERIODIC,
    "one lengthscale a column": kernels.Matern32([0.8]),
    "on its column": M32.on(0),
    "sum": M32 + M12 + 0.5,
    "scaled": 2.5 * M52,
    "product": M32 * M52,
    "product of three": M12 * COSINE * M32,
    "scaled by a constant": kernels.Constant(0.3) * M32 * kernels.Constant(0.6),
    "quasi-periodic": kernels.Periodic(1.1, 1.6, 1.4, harmonics=9) * M32,
    "sub-band": COSINE * M52,
    "sub-band, turned round": M52 * COSINE,
    "Linear x Matern": LINEAR * M32,
    "polynomial": (LINEAR + 0.3) * LINEAR,
    "White x Matern": kernels.White(0.7) * M32,
    "Brownian x Matern": BROWNIAN * M32,
    "Matern x IntegratedBrownian": M12 * INTEGRATED,
    "nested": 2.0 * (M12 + 0.3 * COSINE) * (M32 + 0.5 * LINEAR * BROWNIAN) + kernels.White(0.2) + 0.1,
}
APPROXIMATE = {
    "RBF": kernels.RBF(0.8, 1.7),
    "RBF of 3 states x Matern": kernels.RBF(0.8, 1.7, order=3) * M12,
    "Periodic of 2 harmonics": kernels.Periodic(1.1, 0.4, 1.4, harmonics=2),
    "Periodic of no harmonics": kernels.Periodic(1.1, 0.4, 1.4, harmonics=0),
}
ALL = EXACT | APPROXIMATE


@functools.cache
def pairs(count=60):
    """The pairs (s, t), (t, u) and (s, u) of times s ≤ t ≤ u at every distance, with differences that are exact."""
    rng, unit = np.random.default_rng(0), 2.0**-34
    gaps = unit * np.round(np.exp2(rng.uniform(4.0, 40.0, (2, count))))
    gaps[0, :10] = 0.0
    gaps[1, 5:15] = 0.0
    s = unit * np.round(rng.uniform(-8.0, 8.0, count) / unit)
    t = s + gaps[0]
    u = t + gaps[1]
    return np.stack([s, t, s]), np.stack([t, u, u])


@functools.cache
def discretised(name):
    """A, Q and P of every block, the kernel's covariance and its scale, for all pairs: compiled once for all tests."""
    return jax.tree.map(np.asarray, _discretised(ALL[name], *pairs()))


@jax.jit
def _discretised(kernel, start, end):
    def pair(start, end):
        states = [
            (block.transition(start, end), block.noise(start, end), block.covariance(start), block.covariance(end))
            for block in kernel.blocks()
        ]
        a, b = start[None], end[None]
        return states, kernel.evaluate(a, b), jnp.sqrt(kernel.evaluate(a, a) * kernel.evaluate(b, b))

    return jax.vmap(jax.vmap(pair))(start, end)


def sandwich(transition, covariance):
    return transition @ covariance @ np.swapaxes(transition, -1, -2)


def deviations(covariance):
    """√(C_ii C_jj), with 1 where that is 0."""
    scale = np.sqrt(np.einsum("...ii->...i", covariance))
    scale = scale[..., :, None] * scale[..., None, :]
    return np.where(scale > 0.0, scale, 1.0)


@pytest.mark.cases(slow=["quasi-periodic", "nested"])
@pytest.mark.parametrize("name", EXACT)
def test_covariance_is_that_of_the_kernel(name):
    states, covariance, scale = discretised(name)
    implied = sum((transition @ before)[..., 0, 0] for transition, _, before, _ in states)
    assert np.max(np.abs(implied - covariance) / scale) < 1e-12


@pytest.mark.parametrize("name", ALL)
def test_two_steps_are_one(name):
    for transition, noise, *_ in discretised(name)[0]:
        first, second, whole = transition
        np.testing.assert_allclose(second @ first, whole, rtol=1e-12, atol=1e-12 * np.max(np.abs(whole)))
        both = sandwich(second, noise[0]) + noise[1]
        assert np.max(np.abs(both - noise[2]) / deviations(noise[2])) < 1e-11


@pytest.mark.parametrize("name", ALL)
def test_a_step_preserves_the_prior(name):
    for transition, noise, start, end in discretised(name)[0]:
        # Near its centre a line is the difference of larger numbers.
        scale = np.maximum(deviations(end), sandwich(np.abs(transition), np.abs(start)))
        assert np.max(np.abs(sandwich(transition, start) + noise - end) / scale) < 1e-12


@pytest.mark.parametrize("name", ALL)
def test_equal_times_change_nothing(name):
    start, end = pairs()
    for block, (transition, noise, *_) in zip(ALL[name].blocks(), discretised(name)[0], strict=True):
        assert np.all(transition[start == end] == np.eye(block.size))
        assert np.all(noise[start == end] == 0.0)
        assert np.all(noise == 0.0) == block.deterministic


@pytest.mark.parametrize("name", ALL)
def test_covariances_are_symmetric_and_positive(name):
    for _, noise, *covariances in discretised(name)[0]:
        for matrix in (noise, *covariances):
            correlation = matrix / deviations(matrix)
            np.testing.assert_allclose(correlation, np.swapaxes(correlation, -1, -2), rtol=0.0, atol=1e-14)
            assert np.min(np.linalg.eigvalsh(correlation)) > -1e-13


# Derivatives ----------------------------------------------------------------------------------

DIFFERENTIATED = [
    "White",
    "Linear",
    "Brownian",
    "IntegratedBrownian",
    "IntegratedMatern12",
    "Matern12",
    "Matern32",
    "Matern52",
    "Matern72",
    "Cosine",
    "product",
    "sub-band",
    "Linear x Matern",
    "RBF",
    "RBF of 3 states x Matern",
    "Periodic of 2 harmonics",
]


@pytest.mark.cases(
    slow=["product", "IntegratedMatern12", "sub-band", "RBF of 3 states x Matern", "Periodic of 2 harmonics"]
)
@pytest.mark.parametrize("name", DIFFERENTIATED)
def test_derivatives_in_hyperparameters(name):
    start = np.zeros(16)
    end = np.concatenate([[0.0], np.logspace(-9.0, 0.6, 15)])
    flat, rebuild = ravel_pytree(ALL[name])
    weights = np.random.default_rng(0).normal(size=16)

    def values(flat):
        blocks = rebuild(flat).blocks()
        return [
            [jax.vmap(block.transition)(start, end), jax.vmap(block.noise)(start, end), jax.vmap(block.covariance)(end)]
            for block in blocks
        ]

    def total(flat):
        return sum(jnp.sum(jnp.tensordot(weights, leaf, 1)) for leaf in jax.tree.leaves(values(flat)))

    @jax.jit
    def everything(flat):
        steps = 1e-6 * jnp.diag(jnp.abs(flat))
        return (
            values(flat),
            jax.jacfwd(values)(flat),
            jax.grad(total)(flat),
            jax.vmap(values)(flat[None, :] + steps),
            jax.vmap(values)(flat[None, :] - steps),
        )

    at, forward, reverse, upper, lower = jax.tree.map(np.asarray, everything(flat))
    gradient = np.zeros(flat.size)
    for block, jacobians, above, below in zip(at, forward, upper, lower, strict=True):
        for index, (value, jacobian, high, low) in enumerate(zip(block, jacobians, above, below, strict=True)):
            assert np.all(np.isfinite(jacobian))
            scale = deviations(value)[..., None] if index else 1.0
            difference = np.moveaxis((high - low), 0, -1) / scale / 2e-6
            np.testing.assert_allclose(jacobian * np.abs(flat) / scale, difference, rtol=1e-6, atol=2e-7)
            gradient += np.einsum("n,nijp->p", weights, jacobian)
    np.testing.assert_allclose(reverse, gradient, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["Matern12", "Matern32", "Matern72", "RBF"])
def test_second_derivatives_in_the_lengthscale(name):
    ends = np.concatenate([[0.0], np.logspace(-6.0, 1.0, 12)])

    def values(lengthscale):
        (block,) = type(ALL[name])(lengthscale).blocks()
        return [
            jax.vmap(lambda end, method=method: method(0.0, end))(ends) for method in (block.transition, block.noise)
        ]

    slope = jax.jacfwd(values)
    second, upper, lower = jax.jit(lambda at: (jax.jacrev(slope)(at), slope(at + 1e-5), slope(at - 1e-5)))(0.8)
    for found, high, low in zip(second, upper, lower, strict=True):
        np.testing.assert_allclose(found, (high - low) / 2e-5, rtol=1e-6, atol=1e-7)


# Approximations -------------------------------------------------------------------------------


def implied_covariance(kernel, lags):
    """Σ [A P]₀₀ of the blocks."""

    def one(lag):
        return sum((block.transition(0.0, lag) @ block.covariance(0.0))[0, 0] for block in kernel.blocks())

    return np.asarray(jax.jit(jax.vmap(one))(lags))


@pytest.mark.parametrize("order", RBF_ORDERS)
def test_error_of_rbf_is_as_stated(order):
    table = re.findall(r"^ *\| (order|error) \| (.*) \|$", kernels.RBF.__doc__ or "", re.MULTILINE)
    (_, orders), (_, errors) = table
    stated = dict(zip(map(int, orders.split(" | ")), map(float, errors.split(" | ")), strict=True))[order]
    lags = np.concatenate([np.linspace(0.0, 8.0, 4001), [20.0, 1e3, 1e6]])
    error = np.max(np.abs(implied_covariance(kernels.RBF(order=order), lags) - np.exp(-0.5 * lags**2)))
    assert 0.95 * stated < error <= stated


@pytest.mark.parametrize(("lengthscale", "harmonics"), [(1.0, 3), (0.5, 5), (0.25, 10), (3.0, 0)])
def test_truncation_error_of_periodic(lengthscale, harmonics):
    kernel = kernels.Periodic(1.3, lengthscale, 1.7, harmonics)
    lags = np.linspace(0.0, 1.3, 101)
    exact = 1.7 * np.exp(-2.0 * np.sin(np.pi * lags / 1.3) ** 2 / lengthscale**2)
    error = exact - implied_covariance(kernel, lags)
    assert np.argmax(np.abs(error)) in (0, 100)
    assert kernel.truncation_error() == pytest.approx(error[0], rel=1e-9, abs=1e-15)


@pytest.mark.parametrize(("lengthscale", "stated"), [(1.0, 1e-11), (0.5, 3e-6), (0.25, 9e-3)])
def test_truncation_error_of_ten_harmonics_is_as_stated(lengthscale, stated):
    assert kernels.Periodic(lengthscale=lengthscale).truncation_error() == pytest.approx(stated, rel=0.3)


@pytest.mark.parametrize("lengthscale", [1.0, 0.7, 0.4, 0.2, 0.1, 0.05, 0.02])
def test_how_many_harmonics_are_enough_is_as_stated(lengthscale):
    harmonics = int(np.ceil(5.0 / lengthscale))
    assert kernels.Periodic(lengthscale=lengthscale, harmonics=harmonics).truncation_error() < 2e-5


@jax.jit
def bessel_and_slope(z):
    return jax.jvp(lambda z: scaled_bessel(60, z), (z,), (1.0,))


@pytest.mark.parametrize("z", [1e-6, 0.01, 0.3, 1.0, 7.0, 60.0, 1e3, 1e5])
def test_bessel_functions(z):
    values, slopes = bessel_and_slope(z)
    np.testing.assert_allclose(values, ive(np.arange(60), z), rtol=1e-12)
    expected = 0.5 * (ive(np.arange(-1, 59), z) + ive(np.arange(1, 61), z)) - ive(np.arange(60), z)
    np.testing.assert_allclose(slopes, expected, rtol=1e-8, atol=1e-13)


# A block from its differential equation -------------------------------------------------------


@pytest.mark.parametrize("kernel", [M12, M32, M52, M72], ids=lambda kernel: type(kernel).__name__)
def test_linear_sde_is_the_closed_form(kernel):
    (block,) = kernel.blocks()
    rate = np.sqrt(2.0 * block.size - 1.0) / 0.8
    drift = np.diag(np.ones(block.size - 1), 1)
    drift[-1] = -np.poly(-np.ones(block.size))[:0:-1]
    stationary = np.asarray(block.covariance(0.0))
    flow = rate * drift @ stationary
    diffusion = np.diag(-np.diag(flow + flow.T))
    generic = kernels.LinearSDE(rate * drift, diffusion, stationary)
    ends = np.concatenate([[0.0], np.logspace(-9.0, 3.0, 40)])

    @jax.jit
    @jax.vmap
    def both(end):
        return [(each.transition(0.0, end), each.noise(0.0, end)) for each in (block, generic)]

    (transition, noise), (same_transition, same_noise) = jax.tree.map(np.asarray, both(ends))
    np.testing.assert_allclose(same_transition, transition, rtol=0.0, atol=1e-13)
    assert np.max(np.abs(same_noise - noise) / deviations(noise)) < 1e-11
    assert np.all(same_transition[0] == np.eye(block.size)) and np.all(same_noise[0] == 0.0)


def test_linear_sde_in_a_kernel_of_ones_own():
    class Resonance(kernels.Kernel):
        def evaluate(self, x1, x2):
            r = jnp.abs(x1[0] - x2[0])
            return jnp.exp(-r) * (jnp.cos(2.0 * r) + 0.5 * jnp.sin(2.0 * r))

        def blocks(self):
            drift = np.array([[0.0, 1.0], [-5.0, -2.0]])
            return (kernels.LinearSDE(drift, np.diag([0.0, 20.0]), np.diag([1.0, 5.0])),)

    lags = np.linspace(0.0, 9.0, 50)
    for kernel in (Resonance(), Resonance() * M32):
        exact = kernels.gram(kernel, jnp.zeros((1, 1)), jnp.asarray(lags)[:, None])[0]
        np.testing.assert_allclose(implied_covariance(kernel, lags), exact, rtol=0.0, atol=1e-13)
