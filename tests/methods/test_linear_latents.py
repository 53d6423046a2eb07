"""Latents that enter linearly are integrated without nodes: the same numbers as from many nodes, or better ones."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import newtongp as ng
from newtongp.likelihoods.base import row_log_prob, row_log_prob_at_nodes
from newtongp.likelihoods.partial import PartlyObserved
from newtongp.likelihoods.weighted import Weighted
from newtongp.methods.expectation import expected_log_density, expected_log_value, log_expected_density
from newtongp.methods.linear_form import powered_derivatives, powered_normal
from newtongp.methods.linearisation import linearise, slope_by_derivative, slope_by_regression
from newtongp.methods.nodes import exact_rule, moment_rule
from newtongp.methods.target import ExpectedLogDensity, PowerDensity
from newtongp.numerics.cubature import PartwiseRule, nodes_and_weights
from newtongp.numerics.gaussian import Gaussian

NOISE = [[0.5, 0.1, 0.0], [0.1, 0.4, -0.1], [0.0, -0.1, 0.6]]
CASES = {
    "noise": (ng.likelihoods.HeteroscedasticGaussian(), [0.7], 30),
    "product": (ng.likelihoods.Product(0.3), [0.7], 30),
    "subbands": (ng.likelihoods.AmplitudeDemodulation(2, [[1.0], [0.5]], variance=0.4), [0.7], 14),
    "network": (ng.likelihoods.RegressionNetwork(3, 1, NOISE), [0.7, -0.3, 0.2], 8),
    "mixture": (ng.likelihoods.LinearCoregionalisation([[1.0, 0.5], [0.0, 2.0]], [0.3, 0.4]), [0.7, -0.2], 30),
}


def gaussian_of(size, scale=0.1):
    rng = np.random.default_rng(size)
    root = rng.normal(size=(size, size))
    return Gaussian(
        jnp.asarray(rng.normal(size=size)), jnp.asarray(scale * (root @ root.T / size + 0.2 * np.eye(size)))
    )


@pytest.fixture(autouse=True)
def double():
    with jax.enable_x64(True):
        yield


@pytest.mark.cases(slow=["noise"], others="thorough")
@pytest.mark.parametrize("name", CASES)
def test_expected_log_density_and_its_derivatives(name):
    likelihood, y, order = CASES[name]
    gaussian = gaussian_of(likelihood.num_latents)
    y = jnp.asarray(y)
    found = jax.jit(lambda g: expected_log_density(likelihood, y, g, None))(gaussian)
    wanted = jax.jit(lambda g: expected_log_density(likelihood, y, g, ng.cubature.GaussHermite(order)))(gaussian)
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-7, atol=2e-8)


WITHOUT_LINEAR = {
    "closed form": (ng.likelihoods.StudentT(4.0, 0.5), [0.7]),
    "nodes": (ng.likelihoods.Bernoulli(), [1.0]),
    "weight": (Weighted(ng.likelihoods.Bernoulli("logit"), 0.3), [1.0]),
    "contrasts": (ng.likelihoods.Softmax(3), [2.0]),
}


@pytest.mark.cases(quick=["noise-None", "weight-None", "closed form-None"], others="slow")
@pytest.mark.parametrize("rule", [None, ng.cubature.GaussHermite(5)], ids=["None", "rule"])
@pytest.mark.parametrize("name", ["noise", *WITHOUT_LINEAR])
def test_the_value_alone_is_that_beside_the_derivatives(name, rule):
    likelihood, y, *_ = (CASES | WITHOUT_LINEAR)[name]
    gaussian = gaussian_of(likelihood.num_latents, scale=1.0)
    found = jax.jit(lambda g: expected_log_value(likelihood, jnp.asarray(y), g, rule))(gaussian)
    wanted = jax.jit(lambda g: expected_log_density(likelihood, jnp.asarray(y), g, rule))(gaussian)
    np.testing.assert_allclose(found, wanted.value, rtol=1e-13)


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("name", ["noise", "product", "subbands"])
def test_a_proposal_points_downhill_in_the_energy_at_the_same_nodes(name):
    """The descent Hessian is twice the derivative of the sum in C where nodes are too coarse."""
    likelihood, y, _ = CASES[name]
    y = jnp.asarray(y)
    gaussian = gaussian_of(likelihood.num_latents, scale=60.0)
    hessian = expected_log_density(likelihood, y, gaussian, None, descent=True).hessian
    plain = expected_log_density(likelihood, y, gaussian, None).hessian
    slope = jax.grad(lambda c: expected_log_density(likelihood, y, Gaussian(gaussian.mean, c), None).value)(
        gaussian.covariance
    )
    wanted = slope + slope.T
    np.testing.assert_allclose(hessian, wanted, rtol=1e-7, atol=1e-9 * float(jnp.max(jnp.abs(wanted))))
    if name != "subbands":
        assert float(jnp.max(jnp.abs(plain - wanted))) > 1e-5 * float(jnp.max(jnp.abs(wanted)))


@pytest.mark.cases(
    slow=[
        "product-1.0",
    ],
    others="thorough",
)
@pytest.mark.parametrize("power", [0.5, 1.0])
@pytest.mark.parametrize("name", CASES)
def test_log_expected_density(name, power):
    likelihood, y, order = CASES[name]
    y, gaussian = jnp.asarray(y), gaussian_of(likelihood.num_latents, scale=0.05)
    found = log_expected_density(likelihood, y, gaussian, None, power)
    wanted = log_expected_density(likelihood, y, gaussian, ng.cubature.GaussHermite(order + 4), power)
    np.testing.assert_allclose(found, wanted, rtol=1e-7)


@pytest.mark.cases(others="thorough")
@pytest.mark.parametrize("name", CASES)
def test_power_ep_expands_the_same_function(name):
    likelihood, y, _ = CASES[name]
    y, gaussian = jnp.asarray(y), gaussian_of(likelihood.num_latents)
    found = jax.jit(lambda g: PowerDensity(0.5).expand(likelihood, y, g, None))(gaussian)

    @jax.jit
    def value(mean):
        return log_expected_density(likelihood, y, Gaussian(mean, gaussian.covariance), None, 0.5) / 0.5

    np.testing.assert_allclose(found.value, value(gaussian.mean), rtol=1e-12)
    # Tilted moments and derivatives of the sum over nodes differ by the error of the nodes.
    np.testing.assert_allclose(found.gradient, jax.jit(jax.jacfwd(value))(gaussian.mean), rtol=1e-7, atol=1e-10)
    np.testing.assert_allclose(found.hessian, jax.hessian(value)(gaussian.mean), rtol=1e-6, atol=1e-9)
    by_covariance = jax.grad(lambda c: log_expected_density(likelihood, y, Gaussian(gaussian.mean, c), None, 0.5) / 0.5)
    slope = jax.jit(by_covariance)(gaussian.covariance)
    np.testing.assert_allclose(found.covariance_gradient, 0.5 * (slope + slope.T), rtol=2e-5, atol=1e-6)


@pytest.mark.cases(thorough=["1e-06"], others="slow")
@pytest.mark.parametrize("noise", [1e-3, 1e-6])
def test_power_ep_with_little_noise_keeps_what_is_known_exactly(noise):
    """A tilted variance far below the gaps between nodes is right where it comes from no nodes."""
    likelihood = ng.likelihoods.LinearCoregionalisation([[1.0, 0.5]], [noise])
    gaussian = gaussian_of(2)
    found = PowerDensity(1.0).expand(likelihood, jnp.asarray([0.4]), gaussian, None)
    a = np.array([1.0, 0.5])
    total = a @ np.asarray(gaussian.covariance) @ a + noise
    np.testing.assert_allclose(found.hessian, -np.outer(a, a) / total, rtol=1e-9)
    np.testing.assert_allclose(found.gradient, a * (0.4 - a @ np.asarray(gaussian.mean)) / total, rtol=1e-9)


@pytest.mark.cases(
    quick=["noise-generalised", "product-partial", "product-full", "product-generalised"], others="thorough"
)
@pytest.mark.parametrize("kind", ["partial", "full", "generalised"])
@pytest.mark.parametrize("name", ["noise", "product", "network"])
def test_variational_gauss_newton(name, kind):
    likelihood, y, order = CASES[name]
    y, gaussian = jnp.asarray(y), gaussian_of(likelihood.num_latents)
    target = ExpectedLogDensity()
    found = jax.jit(lambda g: target.gauss_newton(likelihood, y, g, None, kind))(gaussian)
    wanted = jax.jit(lambda g: target.gauss_newton(likelihood, y, g, ng.cubature.GaussHermite(order), kind))(gaussian)
    np.testing.assert_allclose(found, wanted, rtol=2e-6, atol=2e-7)


@pytest.mark.cases(others="thorough")
@pytest.mark.parametrize("name", CASES)
def test_linearisation(name):
    likelihood, _, order = CASES[name]
    gaussian = gaussian_of(likelihood.num_latents)
    ours, many = moment_rule(likelihood, None), ng.cubature.GaussHermite(order)
    for function in (linearise, slope_by_derivative, slope_by_regression):
        found, wanted = function(likelihood, gaussian, ours), function(likelihood, gaussian, many)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-7, atol=2e-8), found, wanted)


@pytest.mark.parametrize(("degree", "dimension"), [(4, 1), (4, 2), (4, 3), (4, 8), (2, 8), (7, 2)])
def test_exact_rules_are_exact(degree, dimension):
    gaussian = gaussian_of(dimension)
    direction = np.linspace(0.5, 1.5, dimension)
    nodes, weights, _, _ = nodes_and_weights(exact_rule(degree, dimension), gaussian)
    at = nodes @ direction
    mean, variance = direction @ np.asarray(gaussian.mean), direction @ np.asarray(gaussian.covariance) @ direction
    points, own = np.polynomial.hermite_e.hermegauss(20)
    wanted = (own / own.sum()) @ (mean + np.sqrt(variance) * points) ** degree
    np.testing.assert_allclose(weights @ at**degree, wanted, rtol=1e-10)


def test_few_nodes_are_used():
    assert len(moment_rule(ng.likelihoods.HeteroscedasticGaussian(), None).rule(2)[1]) == 40
    assert len(moment_rule(ng.likelihoods.RegressionNetwork(3, 2, NOISE), None).rule(8)[1]) == 129


@pytest.mark.slow
def test_a_partwise_rule_lets_the_first_latents_depend_on_their_own_nodes_alone():
    rule = PartwiseRule((2, 0), ng.cubature.GaussHermite(3), ng.cubature.Unscented(3))
    gaussian = gaussian_of(4)
    nodes, weights, standard, root = nodes_and_weights(rule, gaussian)
    np.testing.assert_allclose(root @ root.T, gaussian.covariance, rtol=1e-12)
    np.testing.assert_allclose(weights @ nodes, gaussian.mean, rtol=1e-12)
    assert len(np.unique(np.round(nodes[:, [2, 0]], 10), axis=0)) == 9
    assert standard.shape == (36, 4)


@pytest.mark.slow
@pytest.mark.thorough
def test_row_log_prob_is_what_linear_form_says():
    for likelihood, y, _ in CASES.values():
        f = gaussian_of(likelihood.num_latents).mean
        others = [k for k in range(likelihood.num_latents) if k not in likelihood.linear_latents]
        matrix, offset, noise = likelihood.linear_form(f[jnp.asarray(others, dtype=int)])
        residual = np.asarray(y) - offset - matrix @ f[jnp.asarray(likelihood.linear_latents)]
        wanted = -0.5 * (
            len(y) * np.log(2 * np.pi) + np.linalg.slogdet(noise)[1] + residual @ np.linalg.solve(noise, residual)
        )
        np.testing.assert_allclose(row_log_prob(likelihood, jnp.asarray(y), f), wanted, rtol=1e-12)


@pytest.mark.cases(
    thorough=[
        "noise-0.5",
        "network-0.5",
        "network-1.0",
        "noise-1.0",
        "product-1.0",
        "subbands-0.5",
        "subbands-1.0",
        "mixture-1.0",
    ],
    others="slow",
)
@pytest.mark.parametrize("power", [0.5, 1.0])
@pytest.mark.parametrize("name", CASES)
def test_derivatives_by_hand_of_the_powered_density(name, power):
    """As by automatic differentiation of the value, in the latents with nodes and in the means of the others."""
    likelihood, y, _ = CASES[name]
    count = likelihood.num_latents - len(likelihood.linear_latents)
    root = jnp.linalg.cholesky(gaussian_of(len(likelihood.linear_latents)).covariance)
    points = jnp.asarray(np.random.default_rng(1).normal(size=(likelihood.num_latents, 3)))

    def value(f):
        return powered_normal(likelihood, jnp.asarray(y), f[:count, None], f[count:, None], root, power)[0]

    @jax.jit
    def both(f):
        by_hand = powered_derivatives(likelihood, jnp.asarray(y), f[:count], f[count:], root, power)
        functions = (value, jax.grad(value), jax.hessian(value))
        return by_hand, [jax.vmap(h, in_axes=1, out_axes=axis)(f) for axis, h in enumerate(functions)]

    found, (values, gradients, wanted) = both(points)
    np.testing.assert_allclose(found.value, values, rtol=1e-13)
    np.testing.assert_allclose(found.gradient, gradients, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(-jnp.einsum("pks,pls->kls", found.fit, found.fit), wanted[count:, count:], atol=1e-11)
    if count:
        np.testing.assert_allclose(found.second, wanted[:count, :count], rtol=1e-11, atol=1e-11)
        np.testing.assert_allclose(found.cross, wanted[:count, count:], rtol=1e-11, atol=1e-11)


AT_NODES = {
    "softplus": (ng.likelihoods.HeteroscedasticGaussian(), [0.7]),
    "exp": (ng.likelihoods.HeteroscedasticGaussian("exp"), [0.7]),
    "network": (ng.likelihoods.RegressionNetwork(3, 2, NOISE, weight_offset=0.1), [0.7, -0.3, 0.2]),
    "missing output": (
        PartlyObserved(ng.likelihoods.RegressionNetwork(3, 2, NOISE, weight_offset=0.1), np.array([True, False, True])),
        [0.7, 0.0, 0.2],
    ),
    "one output": (ng.likelihoods.RegressionNetwork(1, 2, 0.3, weight_offset=[[0.5, -0.2]]), [0.7]),
    "probit": (ng.likelihoods.Bernoulli(), [0.0]),
    "logit": (ng.likelihoods.Bernoulli("logit"), [1.0]),
}


@pytest.mark.parametrize("name", AT_NODES)
def test_derivatives_by_hand_of_log_prob(name):
    likelihood, y = AT_NODES[name]
    points = np.random.default_rng(2).normal(size=(likelihood.num_latents, 5))
    if likelihood.num_latents == 2:
        points[1] = [-30.0, -21.0, -3.0, 0.0, 40.0]  # both forms of the logarithm of softplus

    def value(f):
        return row_log_prob(likelihood, jnp.asarray(y), f)

    @jax.jit
    def both(f):
        functions = (value, jax.grad(value), jax.hessian(value))
        by_hand = row_log_prob_at_nodes(likelihood, jnp.asarray(y), f)
        return by_hand, [jax.vmap(h, in_axes=1, out_axes=axis)(f) for axis, h in enumerate(functions)]

    for found, wanted in zip(*both(jnp.asarray(points)), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-11, atol=1e-12)
