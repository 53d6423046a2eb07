"""Likelihoods whose density is zero for some f, for other f in every row."""

import jax.numpy as jnp
import numpy as np
import pytest

import newtongp as ng
from newtongp._runtime.double import in_double
from newtongp.inference.problem import Setup
from newtongp.inference.starts import bound_nearby, inside_support
from newtongp.numerics.size_classes import exact_sizes

SCALE, SHAPE = 0.5, -0.3


class ExtremeValue(ng.Likelihood):
    """GEV with location f: y < f + SCALE / |SHAPE|."""

    def log_prob(self, y, f):
        inner = 1.0 + SHAPE * (y - f) / SCALE
        log_t = -jnp.log(jnp.where(inner > 0.0, inner, 1.0)) / SHAPE
        value = -jnp.log(SCALE) + (SHAPE + 1.0) * log_t - jnp.exp(log_t)
        return jnp.where(inner > 0.0, value, -jnp.inf)


class ShiftedExponential(ng.Likelihood):
    """y − f is exponential: y >= f."""

    def log_prob(self, y, f):
        return jnp.where(y >= f, -(y - f) / SCALE - jnp.log(SCALE), -jnp.inf)


class Interval(ng.Likelihood):
    """y is within 1 of f, more likely in the middle."""

    def log_prob(self, y, f):
        gap = 1.0 - (y - f) ** 2
        return jnp.where(gap > 0.0, 2.0 * jnp.log(jnp.where(gap > 0.0, gap, 1.0)) + jnp.log(15.0 / 16.0), -jnp.inf)


class Nowhere(ng.Likelihood):
    def log_prob(self, y, f):
        return jnp.where(f < -jnp.inf, 0.0 * f, -jnp.inf)


N = 30
X = np.linspace(0.0, 10.0, N)
RNG = np.random.default_rng(0)
F = 3.0 + np.sin(X)
EXTREME = F + SCALE * ((-np.log(RNG.uniform(size=N))) ** -SHAPE - 1.0) / SHAPE
SHIFTED = F + RNG.exponential(SCALE, N)
PRIOR = ng.GP(ng.kernels.Matern32(2.0))


@pytest.mark.slow
def test_newton_starts_inside_the_support_and_stays_there():
    result = ng.infer(ng.Model(PRIOR, ExtremeValue()), X, EXTREME, ng.Newton())
    assert result.status.ok
    assert np.all(np.isfinite(result.history.energy))
    assert np.all(result.marginals.mean[:, 0] > EXTREME + SCALE / SHAPE)

    # At the mode m = K ∇log p(y | m), with the derivative of log p = (ξ + 1) log t − t by hand.
    distance = np.sqrt(3.0) * np.abs(X[:, None] - X[None]) / 2.0
    mode = result.marginals.mean[:, 0]
    inner = 1.0 + SHAPE * (EXTREME - mode) / SCALE
    score = (SHAPE + 1.0 - inner ** (-1.0 / SHAPE)) / (SCALE * inner)
    np.testing.assert_allclose((1.0 + distance) * np.exp(-distance) @ score, mode, atol=1e-5)


@pytest.mark.cases(slow=["shifted exponential, Newton"], others="thorough")
@pytest.mark.parametrize(
    ("likelihood", "y", "method", "side"),
    [
        pytest.param(ExtremeValue(), EXTREME, ng.VI(), "below", id="extreme value, VI"),
        pytest.param(ShiftedExponential(), SHIFTED, ng.Newton(), "above", id="shifted exponential, Newton"),
    ],
)
def test_a_method_that_a_bound_stops_says_so_and_what_to_use(likelihood, y, method, side):
    with pytest.raises(ng.InferenceError, match=rf"bounded_support: .*PowerEP\(1\.0\).*row \d+ .* {side} f = \d"):
        ng.infer(ng.Model(PRIOR, likelihood), X, y, method)


@pytest.mark.slow
@pytest.mark.thorough
def test_what_it_says_to_use_works():
    result = ng.infer(ng.Model(PRIOR, ExtremeValue()), X, EXTREME, ng.PowerEP(1.0))
    assert result.status.ok
    assert np.sqrt(np.mean((result.marginals.mean[:, 0] - F) ** 2)) < 0.3


@pytest.mark.slow
@pytest.mark.thorough
def test_a_likelihood_that_is_zero_everywhere_asks_for_a_start():
    with pytest.raises(ng.InferenceError, match=r"could not start.*sites=Sites\(100 \* f0"):
        ng.infer(ng.Model(PRIOR, Nowhere()), X, EXTREME, ng.Newton())


@in_double
def starts_of(likelihood, y):
    with exact_sizes():
        problem = Setup(ng.Model(PRIOR, likelihood), X, y).problem
    return problem, list(inside_support(problem))


@pytest.mark.parametrize("offset", [-1e4, -30.0, 0.1, 1e3])
def test_sites_hold_f_inside_the_support_wherever_that_is(offset):
    y = offset + 10.0 * np.sin(X)
    _, starts = starts_of(ExtremeValue(), y)
    centre = starts[0].linear[:, 0] / starts[0].precision[:, 0, 0]
    assert np.all(centre > y + SCALE / SHAPE)
    assert np.ptp(centre) < 1e-9 * (1.0 + abs(offset))  # one shift for all rows


def test_every_row_has_its_own_start_where_there_is_none_for_all():
    _, starts = starts_of(Interval(), np.where(X < 5.0, 4.0, -4.0))
    centre = starts[0].linear[:, 0] / starts[0].precision[:, 0, 0]
    assert np.all(np.abs(centre - np.where(X < 5.0, 4.0, -4.0)) < 1.0)


@pytest.mark.slow
def test_overflow_is_no_bound():
    """exp(f) overflows to infinity: log p is −∞ there, but was −1e308 just before."""
    problem, _ = starts_of(ng.likelihoods.Poisson(), np.arange(N))
    wide = ng.Gaussian(np.zeros((N, 1)), np.full((N, 1, 1), 1e4))
    assert in_double(bound_nearby)(problem, wide) is None
    narrow, _ = starts_of(ShiftedExponential(), SHIFTED)
    found = in_double(bound_nearby)(narrow, ng.Gaussian(SHIFTED[:, None] - 1.0, np.ones((N, 1, 1))))
    assert found is not None and not found.below
    assert found.edge[0] == pytest.approx(SHIFTED[found.row])


@pytest.mark.slow
@pytest.mark.thorough
def test_hyperparameters_are_learned_with_a_bounded_support():
    result = ng.fit(ng.Model(ng.GP(ng.kernels.Matern32(2.0), mean=0.0), ExtremeValue()), X, EXTREME, ng.Newton())
    assert result.status.ok and np.isfinite(result.energy)
