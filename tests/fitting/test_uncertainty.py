"""How surely the data determine what was learned: weak priors that stand back, and joint covariances with weights."""

import csv
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
import scipy.stats

import newtongp as ng
from newtongp.fitting.fit import fit

L: Any = ng.likelihoods
DATA = Path(__file__).parents[1] / "data"


def read(name):
    with open(DATA / f"{name}.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return {field: np.array([row[field] for row in rows]) for field in rows[0]}


def ships():
    """The design of McCullagh and Nelder's model, months of service, and incidents."""
    table = read("ships")
    service = table["service"].astype(float)
    columns = [np.ones(service.size), *(table["type"] == each for each in "BCDE")]
    columns += [*(table["year"] == each for each in ("65", "70", "75")), table["period"] == "75"]
    used = service > 0.0
    return np.column_stack(columns).astype(float)[used], service[used], table["incidents"].astype(float)[used]


def weights_of(result) -> Any:
    return result.posterior.weights


# Weak priors --------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.thorough
def test_a_weak_prior_does_not_move_what_the_data_determine():
    """The prior variance of a linear model, given as 1e4: where ∂VFE/∂v = 0, v is the mean of E[w²]."""
    design, service, incidents = ships()
    model = ng.Model(ng.LinearModel(1e4), L.Poisson(exposure=service))
    result = fit(model, design, incidents)
    variance, weights = float(result.learned["prior_covariance"]), weights_of(result)
    wanted = np.mean(weights.mean**2 + np.diag(weights.covariance))
    error = float(result.standard_errors["prior_covariance"])
    assert abs(variance - wanted) < 1e-3 * error
    # As without any weak prior.
    assert abs(variance - 4.80) < 0.01 and abs(error - 2.29) < 0.01
    assert result.priors == {} and result.undetermined == [] and result.penalty == 0.0
    assert result.summary(checks=False).warnings == []


@pytest.mark.slow
def test_what_the_data_leave_open_keeps_its_weak_prior():
    """Noise about a constant bounds no lengthscale."""
    rng = np.random.default_rng(0)
    x, y = np.linspace(0.0, 1.0, 30), 2.0 + 0.3 * rng.normal(size=30)
    result = fit(ng.Model(ng.GP(ng.kernels.RBF()), L.Gaussian()), x, y)
    assert result.status is ng.Status.CONVERGED and result.undetermined == ["kernel.lengthscale"]
    assert 10.0 < result.learned["kernel.lengthscale"] < 100.0
    (found,) = [each for each in result.summary(checks=False).warnings if each.about == "kernel.lengthscale"]
    assert "times the range of x" in found.text


# Covariances --------------------------------------------------------------------------------------


class Shifted(ng.Likelihood):
    """A Gaussian of known variance whose mean is f and an intercept."""

    offset: Any = ng.learned(default=0.0)
    ratio: Any = ng.learned(ng.Positive(), default=1.0)

    def log_prob(self, y, f):
        return -0.5 * (y - f - self.offset) ** 2 / 0.25 - 0.5 * (jnp.log(self.ratio) - 0.3) ** 2 / 0.04


@pytest.mark.slow
@pytest.mark.thorough
def test_the_joint_covariance_is_that_of_least_squares():
    """With a wide prior, weights and an intercept that is learned are one regression."""
    rng = np.random.default_rng(1)
    x = rng.uniform(1.0, 4.0, size=(25, 2))
    y = x @ [0.5, -1.0] + 2.0 + 0.5 * rng.normal(size=25)
    result = fit(
        ng.Model(ng.LinearModel(1e8), Shifted()), x, y, ng.Newton(), parameters={"prior_covariance": ng.Fixed()}
    )
    design = np.column_stack([x, np.ones(25)])
    wanted = 0.25 * np.linalg.inv(design.T @ design)
    found = result.joint_covariance()
    assert found.names == ["weight[0]", "weight[1]", "likelihood.offset", "likelihood.ratio"]
    np.testing.assert_allclose(found.matrix[:3, :3], wanted, rtol=1e-4)
    np.testing.assert_allclose(found.values[:3], np.linalg.lstsq(design, y, rcond=None)[0], rtol=1e-4)
    # Without the intercept's uncertainty they would be surer than they are.
    assert np.all(np.diag(weights_of(result).covariance) < 0.8 * np.diag(wanted)[:2])
    # A log-normal density of 25 rows, in the logarithm and by the delta method.
    unconstrained = result.unconstrained_covariance
    assert unconstrained.names == ["likelihood.offset", "log likelihood.ratio"]
    np.testing.assert_allclose(unconstrained.matrix[1, 1], 0.04 / 25.0, rtol=1e-4)
    own = result.covariance
    assert own.names == ["likelihood.offset", "likelihood.ratio"]
    np.testing.assert_allclose(np.sqrt(own.matrix[1, 1]), np.exp(0.3) * np.sqrt(0.04 / 25.0), rtol=1e-4)
    np.testing.assert_allclose(own.standard_errors["likelihood.offset"], result.standard_errors["likelihood.offset"])
    assert result.joint_covariance().standard_errors["weight[0]"] == np.sqrt(found.matrix[0, 0])


def test_covariances_that_cannot_be_had_say_why():
    x, y = np.linspace(0.0, 1.0, 5), np.zeros(5)
    fixed = {"lengthscale": ng.Fixed(), "kernel.variance": ng.Fixed()}
    model = ng.Model(ng.GP(ng.kernels.RBF()), L.Gaussian())
    result = fit(model, x, y, parameters=fixed, max_steps=0, standard_errors=False, throw=False)
    with pytest.raises(ValueError, match="use fit with standard_errors=True"):
        _ = result.covariance
    with pytest.raises(ValueError, match="is for the weights of a LinearModel, but the prior is a GP"):
        result.joint_covariance()


@pytest.mark.thorough
@pytest.mark.slow
def test_standard_errors_of_ordinal_coefficients():
    """The wine data: against R (ordinal::clm, link = "probit") and the Hessian of the joint log likelihood."""
    table = read("wine")
    design = np.column_stack([table["temp"] == "warm", table["contact"] == "yes"]).astype(float)
    rating = table["rating"].astype(int) - 1

    def loss(unconstrained):
        cuts = np.concatenate([[-np.inf], np.cumsum(unconstrained[2:]), [np.inf]])
        f = design @ unconstrained[:2]
        upper, lower = (scipy.stats.norm.cdf(cuts[rating + k] - f) for k in (1, 0))
        return -np.sum(np.log(upper - lower))

    def apart(unconstrained):
        return np.append(unconstrained[:3], np.exp(unconstrained[3:]))  # thresholds that increase

    found = scipy.optimize.minimize(
        lambda unconstrained: loss(apart(unconstrained)), [1.0, 1.0, -1.0, 0.0, 0.0, 0.0], method="BFGS"
    )
    best = apart(found.x)
    moves = 1e-3 * np.eye(6)
    hessian = [
        [(loss(best + a + b) - loss(best + a - b) - loss(best - a + b) + loss(best - a - b)) / 4e-6 for b in moves]
        for a in moves
    ]
    wanted = np.sqrt(np.diag(np.linalg.inv(hessian)))
    np.testing.assert_allclose(wanted[:2], [0.2918, 0.2669], atol=1e-4)  # R

    model = ng.Model(ng.LinearModel(1e4), L.Ordinal([-1.0, 0.0, 1.0, 2.0]))
    result = fit(model, design, rating, ng.Newton(), parameters={"prior_covariance": ng.Fixed()})
    found = result.joint_covariance()
    np.testing.assert_allclose(np.sqrt(np.diag(found.matrix)), wanted, rtol=5e-3)
    np.testing.assert_allclose(found.values, best, atol=0.02)
    # With thresholds plugged in: 0.206.
    assert np.sqrt(weights_of(result).covariance[0, 0]) < 0.75 * wanted[0]


# Units --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1e-12, 1.0, 1e12])
@pytest.mark.parametrize("prior", [ng.GP("matern32"), ng.MarkovGP("matern32")], ids=["GP", "MarkovGP"])
def test_standard_errors_have_the_units_of_y(prior, size):
    """Beside differences of the evidence in closed form: in whatever units y is, the data determine all values."""
    x = np.linspace(0.0, 10.0, 40)
    y = np.sin(x) + 0.1 * np.random.default_rng(0).normal(size=x.size)
    result = fit(ng.Model(prior, L.Gaussian()), x, size * y)
    scales = {"kernel.lengthscale": 1.0, "kernel.variance": size**2, "mean.value": size, "likelihood.variance": size**2}
    learned = {name: float(result.learned[name]) / scale for name, scale in scales.items()}

    def energy(lengthscale, variance, mean, noise):
        r = np.sqrt(3.0) * np.abs(x[:, None] - x[None, :]) / lengthscale
        covariance = variance * (1.0 + r) * np.exp(-r) + noise * np.eye(x.size)
        return 0.5 * (np.linalg.slogdet(covariance)[1] + (y - mean) @ np.linalg.solve(covariance, y - mean))

    values = np.array(list(learned.values()))
    steps = 1e-3 * np.array([values[0], values[1], 1.0, values[3]])

    def second(i, j):
        one, other = np.diag(steps)[i], np.diag(steps)[j]
        signs = ((1.0, 1.0), (1.0, -1.0), (-1.0, 1.0), (-1.0, -1.0))
        total = sum(a * b * energy(*(values + a * one + b * other)) for a, b in signs)
        return total / (4.0 * steps[i] * steps[j])

    hessian = np.array([[second(i, j) for j in range(4)] for i in range(4)])
    expected = np.sqrt(np.diag(np.linalg.inv(hessian)))
    found = [float(result.standard_errors[name]) / scale for name, scale in scales.items()]
    np.testing.assert_allclose(found, expected, rtol=2e-4)
    assert result.notes == {}
