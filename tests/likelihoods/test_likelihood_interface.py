"""What is refused and how, moments that do not exist, and parameters with one value a row."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from newtongp import likelihoods as lk
from newtongp.likelihoods import base


@pytest.fixture(autouse=True)
def strict_double():
    with jax.enable_x64(True), jax.numpy_rank_promotion("raise"):
        yield


@pytest.mark.parametrize(
    ("likelihood", "bad"),
    [
        (lk.Gaussian(), np.inf),
        (lk.StudentT(), -np.inf),
        (lk.Gamma(), 0.0),
        (lk.Exponential(), -0.5),
        (lk.LogNormal(), -0.5),
        (lk.Beta(), 1.0),
        (lk.Poisson(), 2.5),
        (lk.NegativeBinomial(), -1.0),
        (lk.Binomial(5), 0.5),
        (lk.BetaBinomial(5), 0.5),
        (lk.Bernoulli(), 2.0),
    ],
    ids=lambda value: type(value).__name__,
)
def test_values_outside_the_support_are_named(likelihood, bad):
    fine = likelihood.support.example
    likelihood.check_support(np.array([[fine], [np.nan]]))
    with pytest.raises(ValueError, match=f"row 2 is {bad:g}"):
        likelihood.check_support(np.array([[fine], [np.nan], [bad]]))


@pytest.mark.parametrize("kind", [lk.Binomial, lk.BetaBinomial])
def test_more_successes_than_trials_are_named(kind):
    likelihood = kind([3, 5, 4])
    likelihood.check_support(np.array([[3.0], [np.nan], [0.0]]))
    with pytest.raises(ValueError, match="row 2 is 5, with 4 trials"):
        likelihood.check_support(np.array([[3.0], [5.0], [5.0]]))
    with pytest.raises(ValueError, match="row 1 is 9, with 8 trials"):
        kind(8).check_support(np.array([[3.0], [9.0]]))
    with pytest.raises(ValueError, match="trials has 3 rows, but y has 2"):
        likelihood.check_support(np.array([[3.0], [1.0]]))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: lk.Gaussian(0.0), "variance must be greater than 0, got 0.0"),
        (lambda: lk.Gaussian([[1.0, 2.0]]), "variance must be an array with at most 1 dimension"),
        (lambda: lk.Gaussian([1.0, 0.0]), "variance must be greater than 0"),
        (lambda: lk.Gaussian(["wide"]), "variance must be a number or an array of numbers, got"),
        (lambda: lk.StudentT(df=-1.0), "df must be greater than 0"),
        (lambda: lk.StudentT(scale=np.nan), "scale must be finite"),
        (lambda: lk.Gamma(shape=0.0), "shape must be greater than 0"),
        (lambda: lk.Gamma(link="log"), "link must be one of 'exp', 'softplus', got 'log'"),
        (lambda: lk.Exponential(link="probit"), "link must be one of 'exp', 'softplus', got 'probit'"),
        (lambda: lk.Exponential(link=2.0), "link must be one of 'exp', 'softplus', got 2.0"),
        (lambda: lk.Beta(concentration=0.0), "concentration must be greater than 0"),
        (lambda: lk.Beta(link="exp"), "link must be one of 'probit', 'logit', got 'exp'"),
        (lambda: lk.LogNormal(scale=-1.0), "scale must be greater than 0"),
        (lambda: lk.Poisson(exposure=[1.0, 0.0]), "exposure must be greater than 0"),
        (lambda: lk.Poisson(exposure=np.ones((2, 2))), "exposure must be an array with at most 1"),
        (lambda: lk.NegativeBinomial(dispersion=0.0), "dispersion must be greater than 0"),
        (lambda: lk.Binomial(trials=[3, 2.5]), "trials must be positive integers"),
        (lambda: lk.Binomial(trials=0), "trials must be greater than 0"),
        (lambda: lk.BetaBinomial(trials=[3, 2.5]), "trials must be positive integers"),
        (lambda: lk.BetaBinomial(3, concentration=0.0), "concentration must be greater than 0"),
        (lambda: lk.Bernoulli(lapse=0.5), "lapse must be at least 0 and less than 0.5, got 0.5"),
        (lambda: lk.Bernoulli(lapse=-0.1), "lapse must be at least 0 and less than 0.5, got -0.1"),
    ],
)
def test_constructors_name_what_is_wrong(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def test_hyperparameters_are_double_precision_leaves_and_links_are_not_leaves():
    leaves = jax.tree.leaves(lk.NegativeBinomial(0.5, "softplus", exposure=[1, 2, 3]))
    assert [type(leaf) for leaf in leaves] == [np.ndarray] * 2
    assert {leaf.dtype for leaf in leaves} == {np.dtype(np.float64)}


def test_student_without_covariance_says_so_before_tracing():
    assert lk.StudentT(df=2.5).moments_problem() is None
    heavy = lk.StudentT(df=2.0)
    assert heavy.moments_problem() == "StudentT with df = 2 has no covariance: use df > 2, or quantiles of predictions"
    assert heavy.moments_problem() is not None
    with pytest.raises(ValueError, match="df = 2 has no covariance"):
        heavy.covariance(0.0)
    assert jax.jit(lambda likelihood: likelihood.covariance(0.0))(heavy) == np.inf


class OnlyLogProb(lk.Likelihood):
    """All that a likelihood has to have."""

    def log_prob(self, y, f):
        """A standard normal, in effect."""
        return -0.5 * (y - f) ** 2


class WithMean(lk.Likelihood):
    """Half of the moments."""

    def log_prob(self, y, f):
        """A standard normal, in effect."""
        return -0.5 * (y - f) ** 2

    def mean(self, f):
        """Of y."""
        return f


def test_missing_moments_are_named():
    assert lk.Poisson().moments_problem() is None
    assert "OnlyLogProb has no `mean` and no `covariance`: define them" in OnlyLogProb().moments_problem()
    assert "WithMean has no `covariance`: define it" in WithMean().moments_problem()
    with pytest.raises(NotImplementedError, match="OnlyLogProb has no `mean`: define it"):
        OnlyLogProb().mean(0.0)


@pytest.mark.cases(thorough=["per_row1-<lambda>"])
@pytest.mark.parametrize(
    ("per_row", "one_row"),
    [
        (lk.Poisson(exposure=[1.0, 2.0, 5.0]), lambda n: lk.Poisson(exposure=[1.0, 2.0, 5.0][n])),
        (
            lk.NegativeBinomial(exposure=[1.0, 2.0, 5.0]),
            lambda n: lk.NegativeBinomial(exposure=[1.0, 2.0, 5.0][n]),
        ),
        (lk.Binomial(trials=[4, 6, 9]), lambda n: lk.Binomial(trials=[4, 6, 9][n])),
        (lk.BetaBinomial(trials=[4, 6, 9]), lambda n: lk.BetaBinomial(trials=[4, 6, 9][n])),
        (lk.Gaussian([0.1, 2.0, 0.7]), lambda n: lk.Gaussian([0.1, 2.0, 0.7][n])),
        (lk.StudentT(scale=[0.1, 2.0, 0.7]), lambda n: lk.StudentT(scale=[0.1, 2.0, 0.7][n])),
        (lk.LogNormal([0.1, 2.0, 0.7]), lambda n: lk.LogNormal([0.1, 2.0, 0.7][n])),
    ],
)
def test_row_parameters_reach_their_rows(per_row, one_row):
    y, f = jnp.array([[1.0], [3.0], [4.0]]), jnp.array([[-0.3], [0.1], [1.2]])
    axes = base.row_axes(per_row)
    together = jax.jit(jax.vmap(base.row_log_prob, in_axes=(axes, 0, 0)))(per_row, y, f)
    covariances = jax.vmap(base.row_covariance, in_axes=(axes, 0))(per_row, f)
    assert covariances.shape == (3, 1, 1)
    for n in range(3):
        np.testing.assert_allclose(together[n], base.row_log_prob(one_row(n), y[n], f[n]), rtol=1e-14)
        np.testing.assert_allclose(covariances[n], base.row_covariance(one_row(n), f[n]), rtol=1e-14)
    assert list(base.rows_given(per_row).values()) == [3]
    assert base.rows_given(one_row(0)) == {}


def test_row_parameters_for_other_rows_are_checked():
    moved = base.with_row_parameters(lk.Poisson(), exposure=[2.0, 3.0])
    assert base.rows_given(moved) == {"exposure": 2}
    with pytest.raises(ValueError, match="exposure must be greater than 0"):
        base.with_row_parameters(lk.Poisson(), exposure=-1.0)
    with pytest.raises(ValueError, match="variance must be greater than 0"):
        base.with_row_parameters(lk.Gaussian(), variance=[1.0, -1.0])
    with pytest.raises(ValueError, match="trials must be positive integers"):
        base.with_row_parameters(lk.Binomial(3), trials=1.5)
    with pytest.raises(ValueError, match="trials is not a row parameter of Poisson"):
        base.with_row_parameters(lk.Poisson(), trials=3)


@pytest.mark.parametrize("likelihood", [lk.Gaussian(), lk.Poisson(), lk.Bernoulli()])
def test_row_functions_return_vectors_and_matrices(likelihood):
    y, f = jnp.array([1.0]), jnp.array([0.3])
    assert base.row_log_prob(likelihood, y, f).shape == ()
    assert base.row_mean(likelihood, f).shape == (1,)
    assert base.row_covariance(likelihood, f).shape == (1, 1)
    assert base.row_cdf(likelihood, y[0], f).shape == ()
    assert base.row_sample(likelihood, jax.random.key(0), f).shape == (1,)


@pytest.mark.parametrize("link", ["probit", "logit"])
def test_latents_may_be_integers(link):
    for likelihood in (lk.Bernoulli(link), lk.Binomial(3, link), lk.Beta(2.0, link)):
        for moment in (likelihood.mean, likelihood.covariance):
            assert float(moment(1)) == float(moment(1.0))


def test_outputs_may_be_lists():
    likelihood, f = lk.MultivariateGaussian([1.0, 2.0]), [0.3, -0.2]
    assert float(likelihood.log_prob([0.5, 1.0], f)) == float(likelihood.log_prob(jnp.array([0.5, 1.0]), f))
