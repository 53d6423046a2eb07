"""The joint distribution of f at new inputs, given as users give them."""

import numpy as np
import pytest

import newtongp as ng
from newtongp import kernels
from newtongp.terms import Group, Linear, Smooth

RNG = np.random.default_rng(3)
DAYS = np.datetime64("2024-01-01") + np.arange(30)
COUNTS = RNG.poisson(4.0, 30)
TABLE = {"day": np.arange(30.0), "shop": np.array(list("abc") * 10)}
TWO = kernels.Independent([kernels.Matern32(5.0), kernels.Matern52(9.0)])

CASES = {
    "numbers": (ng.GP(kernels.Matern32(5.0)), "poisson", np.arange(30.0), [3.5, 40.0, 3.5]),
    "in time": (ng.MarkovGP(kernels.Matern32(5.0)), "poisson", np.arange(30.0), np.array([3.5, 40.0, 3.5])),
    "time stamps": (ng.MarkovGP(kernels.Matern32(5.0), unit="D"), "poisson", DAYS, DAYS[[4, 9, 4]]),
    "two latents": (ng.GP(TWO), ng.likelihoods.HeteroscedasticGaussian(), np.arange(30.0), [3.5, 40.0, 3.5]),
    "a table": (
        Linear() + Smooth("day") + Group("shop"),
        "poisson",
        TABLE,
        {"day": np.array([1.0, 4.0, 1.0]), "shop": np.array(["a", "new", "a"])},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_joint_has_the_marginals_of_predict_and_equal_rows(case):
    prior, likelihood, x, new = CASES[case]
    result = ng.infer(ng.Model(prior, likelihood), x, COUNTS)
    joint, latent = result.joint(new), result.predict(new).latent
    latents = result.model.likelihood.num_latents
    assert joint.mean.shape == (3 * latents,)
    np.testing.assert_allclose(joint.mean.reshape(3, latents), latent.mean, rtol=1e-8, atol=1e-10)
    blocks = joint.covariance.reshape(3, latents, 3, latents)
    for row in range(3):
        np.testing.assert_allclose(blocks[row, :, row], latent.covariance[row], rtol=1e-7, atol=1e-10)
    # The first and the last row are the same.
    np.testing.assert_allclose(blocks[0, :, 2], latent.covariance[0], rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("prior", [ng.GP, ng.MarkovGP])
def test_a_posterior_takes_matrices_of_numbers_alone(prior):
    result = ng.infer(ng.Model(prior(kernels.Matern32(5.0)), "poisson"), np.arange(30.0), COUNTS)
    for x in (np.arange(3.0), DAYS[:3, None], [["a"]]):
        with pytest.raises(ValueError, match=r"x must be numbers with the shape .*, got .*result\.joint"):
            result.posterior.joint(x)
