"""Parameters as functions, and more zeros: against the likelihoods they are made of, and scipy.stats."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
import scipy.stats as st

import newtongp as ng
from newtongp import likelihoods as lk
from newtongp.likelihoods import base


@pytest.fixture(autouse=True)
def strict_double():
    with jax.enable_x64(True), jax.numpy_rank_promotion("raise"):
        yield


def softplus(f):
    return np.logaddexp(f, 0.0)


# A chained likelihood, and the plain one that it is at given latents.
CHAINS = {
    "dispersion": (
        lk.Chained(lk.NegativeBinomial(exposure=2.0), dispersion="softplus"),
        lambda f: lk.NegativeBinomial(softplus(f[1]), exposure=2.0),
        3.0,
    ),
    "shape": (lk.Chained(lk.Gamma(), shape="exp"), lambda f: lk.Gamma(np.exp(f[1])), 1.7),
    "scale": (lk.HeteroscedasticStudentT(df=5.0), lambda f: lk.StudentT(5.0, softplus(f[1])), -0.6),
    "two": (
        lk.Chained(lk.StudentT(), scale="softplus", df="exp"),
        lambda f: lk.StudentT(np.exp(f[2]), softplus(f[1])),
        -0.6,
    ),
    "probability": (
        lk.Chained(lk.ZeroInflated(lk.Poisson()), probability="logit"),
        lambda f: lk.ZeroInflated(lk.Poisson(), scipy.special.expit(f[1])),
        0.0,
    ),
    "probit": (
        lk.Chained(lk.ZeroInflated(lk.Poisson()), probability="probit"),
        lambda f: lk.ZeroInflated(lk.Poisson(), st.norm.cdf(f[1])),
        2.0,
    ),
    "variance": (lk.Chained(lk.Gaussian(), variance="exp"), lambda f: lk.Gaussian(np.exp(f[1])), 0.4),
    "first": (
        lk.Chained(lk.Ordinal([0.0, 1.0, 2.5]), first="identity"),
        lambda f: lk.Ordinal([f[1], f[1] + 1.0, f[1] + 2.5]),
        2.0,
    ),
}


@pytest.fixture(params=CHAINS)
def chain(request):
    return CHAINS[request.param]


@pytest.mark.cases(thorough=["dispersion", "first"], slow=["shape", "scale", "probability"])
def test_a_chain_is_its_base_with_that_parameter(chain):
    likelihood, plain, y = chain
    f = np.array([0.3, 0.9, 1.4])[: likelihood.num_latents]
    inside, key = plain(f), jax.random.key(0)
    np.testing.assert_allclose(likelihood.log_prob(y, f), inside.log_prob(y, f[0]), rtol=1e-12)
    np.testing.assert_allclose(likelihood.mean(f), inside.mean(f[0]), rtol=1e-12)
    np.testing.assert_allclose(likelihood.covariance(f), inside.covariance(f[0]), rtol=1e-12)
    np.testing.assert_allclose(likelihood.cdf(y, f), inside.cdf(y, f[0]), rtol=1e-12)
    np.testing.assert_allclose(likelihood.sample(key, f), inside.sample(key, f[0]), rtol=1e-12)
    assert likelihood.support == inside.support
    assert likelihood.gaussian_form == inside.gaussian_form
    assert not likelihood.log_concave
    assert likelihood.moments_problem() is None
    assert likelihood.expected_log_prob(y, f, np.eye(f.size)) is None


@pytest.mark.cases(thorough=["dispersion"])
@pytest.mark.parametrize("name", ["dispersion", "shape", "scale", "probability", "probit", "variance"])
def test_derivatives_stay_finite_far_out(name):
    likelihood, _, y = CHAINS[name]
    first, second = (grid.ravel() for grid in np.meshgrid([-20.0, 0.0, 20.0], [-40.0, -10.0, 0.0, 10.0, 40.0]))
    function = lambda f: likelihood.log_prob(y, f)  # noqa: E731
    every = jax.jit(jax.vmap(lambda f: (function(f), jax.grad(function)(f), jax.hessian(function)(f))))
    for part in every(np.stack([first, second], axis=1)):
        assert np.all(np.isfinite(part))


def test_the_named_parameters_are_gone_from_the_leaves():
    chained = lk.Chained(lk.StudentT(df=4.0, scale=7.0), scale="exp")
    assert [float(leaf) for leaf in jax.tree.leaves(chained)] == [4.0]
    gradient = jax.grad(lambda likelihood: likelihood.log_prob(0.3, jnp.zeros(2)))(chained)
    assert np.isfinite(gradient.base.df)


def test_moments_that_the_base_does_not_have():
    assert "df = 2 has no covariance" in lk.HeteroscedasticStudentT(df=2.0).moments_problem()
    # Not a matter of the value that the base came with.
    assert lk.Chained(lk.StudentT(df=1.0), df="exp").moments_problem() is None


@pytest.mark.parametrize(
    "wrap",
    [
        lambda inside: lk.Chained(inside, dispersion="exp"),
        lk.ZeroInflated,
        lambda inside: lk.Chained(lk.ZeroInflated(lk.Chained(inside, dispersion="exp")), probability="logit"),
    ],
    ids=["chained", "zero-inflated", "all"],
)
def test_row_parameters_reach_the_base(wrap):
    exposures = np.array([1.0, 2.0, 5.0])
    together = wrap(lk.NegativeBinomial(exposure=exposures))
    latents = np.random.default_rng(0).normal(size=(3, together.num_latents))
    y = np.array([[0.0], [3.0], [1.0]])
    assert together.row_parameters == ("exposure",)
    assert base.rows_given(together) == {"exposure": 3}
    axes = base.row_axes(together)
    values = jax.jit(jax.vmap(base.row_log_prob, in_axes=(axes, 0, 0)))(together, y, latents)
    for n in range(3):
        alone = wrap(lk.NegativeBinomial(exposure=exposures[n]))
        np.testing.assert_allclose(values[n], base.row_log_prob(alone, y[n], latents[n]), rtol=1e-12)
    moved = base.with_row_parameters(together, exposure=[3.0, 4.0])
    np.testing.assert_array_equal(moved.exposure, [3.0, 4.0])
    with pytest.raises(ValueError, match="exposure must be greater than 0"):
        base.with_row_parameters(together, exposure=-1.0)
    with pytest.raises(AttributeError, match="has no attribute 'trials'"):
        _ = together.trials


def test_the_support_is_that_of_the_base():
    likelihood = lk.ZeroInflated(lk.Binomial([3, 5]))
    likelihood.check_support(np.array([[3.0], [0.0]]))
    with pytest.raises(ValueError, match="row 1 is 6, with 5 trials"):
        likelihood.check_support(np.array([[3.0], [6.0]]))
    with pytest.raises(ValueError, match="positive numbers"):
        lk.Chained(lk.Gamma(), shape="exp").check_support(np.array([[0.0]]))


def test_chains_of_likelihoods_with_several_latents():
    likelihood = lk.Chained(lk.Product(), variance="exp")
    f = np.array([0.4, -0.3, 0.7])
    inside = lk.Product(np.exp(0.7))
    assert likelihood.num_latents == 3 and likelihood.linear_latents == (0,)
    np.testing.assert_allclose(likelihood.log_prob(0.2, f), inside.log_prob(0.2, f[:2]), rtol=1e-13)
    for mine, theirs in zip(likelihood.linear_form(f[1:]), inside.linear_form(f[1:2]), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-13)
    network = lk.Chained(lk.RegressionNetwork(2, 1, 0.1), weight_offset="identity")
    assert network.num_outputs == 2
    np.testing.assert_allclose(network.mean(np.array([2.0, 1.0, 3.0, 0.5])), [3.0, 7.0], rtol=1e-13)


class Cauchy(lk.Likelihood):
    """One of a user's own, with a plain number for a parameter."""

    scale: float = 0.1

    def log_prob(self, y, f):
        """log p(y | f)."""
        return -jnp.log(jnp.pi * self.scale) - jnp.log1p(((y - f) / self.scale) ** 2)


def test_chains_of_a_users_own():
    likelihood = lk.Chained(Cauchy(), scale="exp")
    f = np.array([0.4, -0.3])
    np.testing.assert_allclose(likelihood.log_prob(1.0, f), st.cauchy(0.4, np.exp(-0.3)).logpdf(1.0), rtol=1e-12)
    assert "Cauchy has no `mean` and no `covariance`" in likelihood.moments_problem()
    with pytest.raises(NotImplementedError, match="Cauchy has no `cdf`"):
        likelihood.cdf(1.0, f)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: lk.Chained(lk.StudentT()), "name at least one parameter .* StudentT has df, scale"),
        (lambda: lk.Chained("student", scale="exp"), "base must be a likelihood such as"),
        (lambda: lk.Chained(lk.StudentT(), width="exp"), "width is not a parameter that .*: StudentT has df, scale"),
        (
            lambda: lk.Chained(lk.Poisson(), link="exp"),
            "link is not a parameter that can be a latent: Poisson has none",
        ),
        (
            lambda: lk.Chained(lk.NegativeBinomial(), exposure="exp"),
            "exposure is given per row with the data.* has dispersion",
        ),
        (lambda: lk.Chained(lk.StudentT(), scale="log"), "the link of scale must be one of 'exp', .*, got 'log'"),
        (lambda: lk.Chained(lk.StudentT(), scale="identity"), "takes scale to -3, which StudentT does not allow"),
        (lambda: lk.Chained(lk.ZeroInflated(lk.Poisson()), probability="exp"), "'exp' takes probability to 20.1"),
        (lambda: lk.Chained(lk.Bernoulli(lapse=0.1), lapse="logit"), "takes lapse to 0.953, which Bernoulli does not"),
        (lambda: lk.Chained(lk.Bernoulli(), lapse="logit"), "Bernoulli has none"),
        (lambda: lk.Chained(lk.Binomial([3, 4]), trials="exp"), "trials is given per row with the data"),
        (lambda: lk.HeteroscedasticStudentT(link="logit"), "link must be one of 'exp', 'softplus'"),
        (lambda: lk.HeteroscedasticStudentT(df=0.0), "df must be greater than 0"),
        (lambda: lk.ZeroInflated(lk.Gaussian()), "base must be a likelihood of counts from 0 on"),
        (lambda: lk.ZeroInflated("poisson"), "base must be a likelihood such as"),
        (lambda: lk.ZeroInflated(lk.Poisson(), 1.0), "probability must be greater than 0 and less than 1"),
    ],
)
def test_constructors_name_what_is_wrong(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def test_a_chain_can_be_made_inside_a_compiled_function():
    @jax.jit
    def log_prob(df):
        return lk.Chained(lk.StudentT(df), scale="exp").log_prob(0.3, jnp.zeros(2))

    np.testing.assert_allclose(log_prob(4.0), st.t(4.0).logpdf(0.3), rtol=1e-12)


# More zeros -------------------------------------------------------------------------------------


@pytest.mark.cases(others="thorough")
@pytest.mark.parametrize(
    ("inside", "reference"),
    [
        (lk.Poisson(), lambda f: st.poisson(np.exp(f))),
        (lk.NegativeBinomial(0.5), lambda f: st.nbinom(2.0, 1.0 / (1.0 + 0.5 * np.exp(f)))),
        (lk.Binomial(400), lambda f: st.binom(400, scipy.special.expit(f))),
    ],
    ids=["poisson", "negative-binomial", "binomial"],
)
def test_zero_inflated(inside, reference):
    likelihood, counts = lk.ZeroInflated(inside, 0.3), np.arange(401.0)
    f = 0.6
    expected = 0.7 * reference(f).pmf(counts) + 0.3 * (counts == 0.0)
    log_probs = jax.vmap(lambda y: likelihood.log_prob(y, f))(counts)
    np.testing.assert_allclose(np.exp(log_probs), expected, rtol=1e-9, atol=1e-300)
    np.testing.assert_allclose(np.exp(log_probs).sum(), 1.0, rtol=1e-11)
    mean = expected @ counts
    np.testing.assert_allclose(likelihood.mean(f), mean, rtol=1e-10)
    np.testing.assert_allclose(likelihood.covariance(f), expected @ (counts - mean) ** 2, rtol=1e-10)
    cdf = jax.vmap(lambda y: likelihood.cdf(y, f))(counts + 0.3)
    np.testing.assert_allclose(cdf, np.cumsum(expected), rtol=1e-8)
    assert likelihood.cdf(-1.0, f) == 0.0
    draws = np.asarray(jax.vmap(lambda key: likelihood.sample(key, f))(jax.random.split(jax.random.key(1), 20_000)))
    assert draws.dtype == np.float64
    assert abs((draws == 0.0).mean() - expected[0]) < 5.0 * 0.5 / np.sqrt(draws.size)
    assert abs(draws.mean() - mean) < 5.0 * np.sqrt(likelihood.covariance(f) / draws.size)


@pytest.mark.slow
def test_zero_inflated_far_out():
    """A zero under a huge rate is an extra one, and costs what that costs."""
    likelihood = lk.ZeroInflated(lk.Poisson(), 0.3)
    np.testing.assert_allclose(likelihood.log_prob(0.0, 30.0), np.log(0.3), rtol=1e-13)
    np.testing.assert_allclose(likelihood.log_prob(0.0, -50.0), 0.0, atol=1e-15)
    slope = jax.vmap(jax.grad(lambda f: likelihood.log_prob(0.0, f)))(np.array([-50.0, 5.0, 30.0, 200.0]))
    assert np.all(np.isfinite(slope))


# Inference --------------------------------------------------------------------------------------

X = np.linspace(0.0, 3.0, 10)
RUNS = {
    "dispersion-vi": ("dispersion", ng.VI()),
    "dispersion-pl": ("dispersion", ng.PosteriorLinearisation()),
    "scale-ep": ("scale", ng.PowerEP(0.5)),
    "scale-gauss-newton": ("scale", ng.Newton(curvature=ng.GaussNewton())),
    "probability-vi": ("probability", ng.VI()),
}


@pytest.mark.cases(others="thorough")
@pytest.mark.parametrize("run", RUNS)
def test_inference_ends_well(run):
    name, method = RUNS[run]
    likelihood, plain, _ = CHAINS[name]
    keys = jax.random.split(jax.random.key(4), X.size)
    latents = np.stack([1.0 + np.sin(X), 0.3 * np.cos(X)], axis=1)
    y = np.array([plain(f).sample(key, f[0]) for key, f in zip(keys, latents, strict=True)])
    prior = ng.GP(ng.kernels.Independent([ng.kernels.Matern32(), ng.kernels.Matern32(lengthscale=3.0, variance=0.3)]))
    result = ng.infer(ng.Model(prior, likelihood), X, y, method)
    assert result.status == ng.Status.CONVERGED
    assert np.isfinite(result.energy)
    assert np.all(result.predict([0.5, 1.0]).variance > 0.0)


@pytest.mark.thorough
@pytest.mark.slow
def test_exposures_of_a_chain_at_new_rows():
    model = ng.Model(
        ng.GP(ng.kernels.Independent([ng.kernels.RBF(), ng.kernels.RBF(variance=0.1)])),
        lk.Chained(lk.NegativeBinomial(exposure=np.arange(1.0, 5.0)), dispersion="exp"),
    )
    result = ng.infer(model, [0.0, 1.0, 2.0, 3.0], [2, 3, 1, 6])
    one, ten = (result.predict([0.5], exposure=exposure).mean for exposure in (1.0, 10.0))
    np.testing.assert_allclose(ten, 10.0 * one, rtol=1e-9)


def test_a_chained_gaussian_is_the_heteroscedastic_one():
    """variance = exp(2 f) there and exp(f) here: the same model with another kernel variance."""
    chained, own = lk.Chained(lk.Gaussian(), variance="exp"), lk.HeteroscedasticGaussian("exp")
    f = np.array([0.3, 0.8])
    np.testing.assert_allclose(chained.log_prob(0.1, f), own.log_prob(0.1, f * np.array([1.0, 0.5])), rtol=1e-13)
    assert eqx.tree_equal(chained, lk.Chained(lk.Gaussian(5.0), variance="exp"))
