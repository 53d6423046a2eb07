"""Far latents: values and derivatives stay finite, and right where the truth is known."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

from newtongp import likelihoods as lk
from newtongp.likelihoods import links
from newtongp.likelihoods.special import log_rising_factorial


@pytest.fixture(autouse=True)
def strict_double():
    with jax.enable_x64(True), jax.numpy_rank_promotion("raise"):
        yield


def with_derivatives(function, order=2):
    """The function and its derivatives in its last argument, over vectors."""

    def every(*args):
        last, result, derivative = len(args) - 1, [], function
        for _ in range(order + 1):
            result.append(derivative(*args))
            derivative = jax.grad(derivative, argnums=last)
        return tuple(result)

    return jax.jit(jax.vmap(every))


@pytest.mark.cases(
    quick=["likelihood0-values0", "likelihood2-values2", "likelihood6-values6", "likelihood14-values14"],
    others="thorough",
)
@pytest.mark.parametrize(
    ("likelihood", "values"),
    [
        (lk.Gamma(0.5), [1e-3, 1.0, 50.0]),
        (lk.Gamma(2.0, "softplus"), [1e-3, 1.0, 50.0]),
        (lk.Exponential("softplus"), [0.0, 1.0, 50.0]),
        (lk.Beta(2.0), [1e-3, 0.5, 0.999]),
        (lk.Beta(2.0, "logit", 0.1), [1e-3, 0.5, 0.999]),
        (lk.StudentT(3.0, 0.1), [-100.0, 0.0, 30.0]),
        (lk.Poisson(), [0.0, 1.0, 300.0]),
        (lk.Poisson("softplus", exposure=0.1), [0.0, 1.0, 300.0]),
        (lk.NegativeBinomial(0.3), [0.0, 1.0, 300.0]),
        (lk.NegativeBinomial(1e-10, "softplus"), [0.0, 1.0, 300.0]),
        (lk.Binomial(30), [0.0, 11.0, 30.0]),
        (lk.Binomial(30, "probit"), [0.0, 11.0, 30.0]),
        (lk.Binomial(30, "probit", 0.01), [0.0, 11.0, 30.0]),
        (lk.Bernoulli(), [0.0, 1.0, 1.0]),
        (lk.Bernoulli("logit"), [0.0, 1.0, 1.0]),
        (lk.Bernoulli(lapse=0.01), [0.0, 1.0, 1.0]),
        (lk.BetaBinomial(30, 2.0), [0.0, 11.0, 30.0]),
        (lk.BetaBinomial(30, 1e8, "probit"), [0.0, 11.0, 30.0]),
    ],
)
def test_finite_value_gradient_and_hessian(likelihood, values):
    latents = np.concatenate([np.linspace(-40.0, 40.0, 33), [-5.0, -20.0, 1e-300]])
    y, f = (grid.ravel() for grid in np.meshgrid(values, latents))
    for part in with_derivatives(likelihood.log_prob)(y, f):
        assert np.all(np.isfinite(part))


@pytest.mark.cases(others="thorough")
@pytest.mark.parametrize("link", ["exp", "softplus"])
def test_a_scale_that_underflows_leaves_value_gradient_and_hessian_finite(link):
    likelihood = lk.HeteroscedasticStudentT(4.0, link)
    latents = jnp.stack([jnp.full(5, 0.3), jnp.array([-1e4, -800.0, -360.0, -110.0, -90.0])], axis=1)
    for y in (0.3, 1e3):
        density = functools.partial(likelihood.log_prob, y)
        for part in (density, jax.grad(density), jax.hessian(density)):
            assert np.all(np.isfinite(jax.vmap(part)(latents)))


@pytest.mark.slow
def test_log_ndtr_and_its_derivatives():
    x = np.array([-1e4, -300.0, -40.0, -20.0, -10.0, -5.1, -5.0, -4.9, -1.0, 0.0, 1.0, 5.0, 30.0, 1e3])
    value, first, second, third = with_derivatives(links.log_ndtr, order=3)(x)
    np.testing.assert_allclose(value, scipy.special.log_ndtr(x), rtol=1e-12)
    hazard = np.sqrt(2 / np.pi) / scipy.special.erfcx(-x / np.sqrt(2))
    np.testing.assert_allclose(first, hazard, rtol=1e-12, atol=1e-300)
    # The closed form cancels: it is a reference only where it keeps its digits.
    middle = np.abs(x) <= 40.0
    np.testing.assert_allclose(second[middle], (-hazard * (hazard + x))[middle], rtol=1e-9, atol=1e-150)
    # -1 + 1/x^2 - 6/x^4 + ... far out.
    far = x <= -40.0
    np.testing.assert_allclose(second[far], -1.0 + 1.0 / x[far] ** 2 - 6.0 / x[far] ** 4, atol=1e-7)
    assert np.all(np.isfinite(third))


def test_log_ndtr_is_continuous_where_its_formulas_meet():
    x = -1e3 * (1.0 + 1e-12 * np.array([-1.0, 0.0, 1.0]))
    for part in with_derivatives(links.log_ndtr)(x):
        np.testing.assert_allclose(part, part[1], rtol=1e-11)


def test_log_ndtr_and_its_derivatives_in_all_digits():
    # From Laplace's continued fraction below, and from erfc above, where nothing cancels.
    below = -np.concatenate([np.linspace(3.0, 60.0, 400), [400.0, 1e3, 1e5]])
    inverse_mills = -below
    for k in range(400, 0, -1):
        inverse_mills = -below + k / inverse_mills
    above = np.linspace(0.0, 12.0, 200)
    hazard = np.sqrt(2.0 / np.pi) * np.exp(-0.5 * above**2) / scipy.special.erfc(-above / np.sqrt(2.0))
    value, first, second = with_derivatives(links.log_ndtr)(np.concatenate([below, above]))
    count = below.size
    np.testing.assert_allclose(first[:count], inverse_mills, rtol=1e-14)
    # h (h + x), of which the second factor is 1 / (a + 2 / (a + ...)).
    excess = 1.0 / (-below + 2.0 / (-below + 3.0 / (-below + 4.0 / (-below + 5.0 / -below))))
    far = below < -200.0
    np.testing.assert_allclose(second[:count][far], -(inverse_mills * excess)[far], rtol=1e-14)
    np.testing.assert_allclose(
        value[:count], -0.5 * below**2 - 0.5 * np.log(2.0 * np.pi) - np.log(inverse_mills), rtol=1e-14
    )
    np.testing.assert_allclose(first[count:], hazard, rtol=2e-14)
    np.testing.assert_allclose(value[count:], np.log1p(-0.5 * scipy.special.erfc(above / np.sqrt(2.0))), rtol=1e-13)


def test_log_softplus():
    f = np.array([-800.0, -50.0, -20.001, -20.0, -19.999, -1.0, 0.0, 3.0, 40.0, 800.0])
    value, first, second = with_derivatives(lambda latent: links.log_positive("softplus", latent))(f)
    with np.errstate(divide="ignore"):
        reference = np.where(f < -30.0, f, np.log(np.logaddexp(f, 0.0)))
    np.testing.assert_allclose(value, reference, rtol=1e-13)
    slope = np.where(f < -100.0, 1.0, scipy.special.expit(f) / np.maximum(np.logaddexp(f, 0.0), 1e-300))
    np.testing.assert_allclose(first, slope, rtol=1e-8)
    assert np.all(np.isfinite(second)) and np.all(np.asarray(second) <= 1e-15)


def test_softplus():
    f = np.array([-800.0, -50.0, -20.0, -1.0, 0.0, 3.0, 40.0, 800.0])
    value, first, second, third = with_derivatives(links.softplus, order=3)(f)
    p, q = scipy.special.expit(f), scipy.special.expit(-f)
    np.testing.assert_allclose(value, np.logaddexp(f, 0.0), rtol=1e-14)
    np.testing.assert_allclose(first, p, rtol=1e-14)
    np.testing.assert_allclose(second, p * q, rtol=1e-13, atol=1e-16)
    np.testing.assert_allclose(third, p * q * (q - p), rtol=1e-12, atol=1e-16)


@pytest.mark.slow
@pytest.mark.parametrize("link", links.PROBABILITY)
@pytest.mark.parametrize("lapse", [0.0, 1e-12, 0.2])
def test_log_probability_agrees_with_probability(link, lapse):
    f = np.linspace(-8.0, 8.0, 17)
    p = np.asarray(links.probability(link, f, lapse))
    np.testing.assert_allclose(links.log_probability(link, f, lapse), np.log(p), rtol=1e-11, atol=1e-15)
    np.testing.assert_allclose(p + links.probability(link, -f, lapse), 1.0, rtol=1e-14)


def test_derivative_in_the_lapse_is_right_where_there_is_none():
    f = np.array([-3.0, 0.5, 4.0, -60.0])
    in_lapse = jax.grad(links.log_probability, argnums=2)
    slope = np.asarray(jax.jit(jax.vmap(lambda x: in_lapse("probit", x, 0.0)))(f))
    p = scipy.special.ndtr(f[:3])
    np.testing.assert_allclose(slope[:3], (1.0 - 2.0 * p) / p, rtol=1e-12)
    assert np.isfinite(slope[3])


def test_links_work_in_single_precision():
    with jax.enable_x64(False):
        f = jnp.array([-40.0, -5.0, 0.0, 5.0, 40.0], dtype=jnp.float32)
        for link in links.PROBABILITY:
            for part in with_derivatives(lambda x, link=link: links.log_probability(link, x))(f):
                assert part.dtype == jnp.float32 and np.all(np.isfinite(part))


def test_log_rising_factorial():
    r = np.array([1e-3, 2.0, 99.0, 101.0, 1e4, 1e15])
    y = np.array([4.0, 0.0, 30.0, 30.0, 7.0, 3.0])
    exact = [sum(np.log(a + k) for k in range(int(b))) for a, b in zip(r, y, strict=True)]
    np.testing.assert_allclose(log_rising_factorial(r, y), exact, rtol=1e-12, atol=1e-12)


@pytest.mark.slow
def test_hyperparameters_have_finite_derivatives():
    cases = [(lk.NegativeBinomial(0.005), 3.0), (lk.NegativeBinomial(0.5), 3.0), (lk.Beta(2.0), 0.3)]
    cases += [(lk.StudentT(), 0.3), (lk.Gamma(), 0.3), (lk.Bernoulli(), 1.0), (lk.Binomial(3, "probit"), 0.0)]
    for likelihood, y in cases:
        slopes = jax.jit(jax.grad(lambda lik, value=y: lik.log_prob(value, 0.4)))(likelihood)
        assert all(np.isfinite(leaf) for leaf in jax.tree.leaves(slopes))


@pytest.mark.slow
def test_student_with_many_degrees_of_freedom_tends_to_a_gaussian():
    def log_prob(df, y):
        return lk.StudentT(df, 2.0).log_prob(y, 0.3)

    y, z = 1.7, 0.7
    for df in (190.0, 210.0, 1e4, 1e9, 1e15):
        value, slope = jax.value_and_grad(log_prob)(jnp.asarray(df), y)
        # The first term beyond the limit: ((z^2 - 1)^2 - 2) / (4 df).
        excess = ((z**2 - 1.0) ** 2 - 2.0) / (4.0 * df)
        limit = float(lk.Gaussian(4.0).log_prob(y, 0.3)) + excess
        np.testing.assert_allclose(value, limit, rtol=1e-14, atol=2.0 / df**2)
        if df <= 1e9:
            np.testing.assert_allclose(slope, -excess / df, rtol=5.0 / df + 1e-6)


@pytest.mark.parametrize("link", links.POSITIVE)
def test_waiting_times_at_scales_that_underflow(link):
    likelihood, f = lk.Exponential(link), -750.0
    value, first, second = with_derivatives(likelihood.log_prob)(np.zeros(1), np.full(1, f))
    np.testing.assert_allclose(np.concatenate([value, first, second]), [750.0, -1.0, 0.0], atol=1e-12)
    for other in (likelihood, lk.Gamma(2.0, link)):
        assert float(other.cdf(0.0, f)) == 0.0
    # exp(59) scales above 0.
    np.testing.assert_allclose(likelihood.log_prob(np.exp(-691.0), f), 750.0 - np.exp(59.0), rtol=1e-12)
    if link == "exp":
        assert float(likelihood.expected_log_prob(0.0, f, 1.0)) == 750.0


def test_logarithm_of_softplus_and_its_inverse():
    f = jnp.asarray([-700.0, -30.0, -20.0, -19.9, -3.0, 0.0, 0.54, 3.0, 40.0, 1e10, jnp.inf])
    value, inverse = jax.jit(lambda f: links.log_positive_and_inverse("softplus", f))(f)
    exact = np.logaddexp(0.0, np.asarray(f))
    # Where softplus is close to 1, the rounding error of softplus remains in its logarithm.
    np.testing.assert_allclose(value[:-1], np.log(exact[:-1]), rtol=1e-14, atol=3e-16)
    np.testing.assert_allclose(inverse, 1.0 / exact, rtol=1e-14)
    assert value[-1] == jnp.inf
    slopes = jax.jit(jax.vmap(jax.jacfwd(lambda f: links.log_positive_and_inverse("softplus", f))))(f[:-1])
    wanted = scipy.special.expit(np.asarray(f[:-1])) / exact[:-1]
    np.testing.assert_allclose(slopes[0], wanted, rtol=1e-13)
    np.testing.assert_allclose(slopes[1], -wanted / exact[:-1], rtol=1e-13)


@pytest.mark.parametrize("kind", [jnp.float64, jnp.float32])
def test_logarithm_without_calls(kind):
    x = jnp.asarray([1e-30, 0.25, 0.7071, 0.70711, 1.0 - 1e-6, 1.0, 1.0 + 1e-6, 1.4142, 1.41422, 3.0, 1e30], kind)
    exact = np.log(np.asarray(x, dtype=np.float64))
    np.testing.assert_allclose(jax.jit(links._log)(x), exact, rtol=4.0 * float(jnp.finfo(kind).eps))
