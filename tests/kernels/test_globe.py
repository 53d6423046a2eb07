"""The spherical kernel, and kernels of longitude and latitude."""

import jax
import numpy as np
import pytest
from scipy.integrate import quad
from scipy.special import eval_legendre
from sklearn.metrics.pairwise import haversine_distances

from newtongp import kernels


def gram_of(kernel, x):
    return np.asarray(jax.jit(kernels.gram)(kernel, x, x))


def places(rng, count):
    """Points spread evenly over the globe, in degrees."""
    return np.stack([rng.uniform(-180.0, 180.0, count), np.degrees(np.arcsin(rng.uniform(-1.0, 1.0, count)))], axis=1)


def test_spherical_formula(rng):
    x = rng.uniform(size=(30, 3))
    scales = np.array([0.5, 0.9, 2.0])
    r = np.linalg.norm((x[:, None] - x[None]) / scales, axis=2)
    expected = 1.7 * np.where(r < 1.0, 1.0 - 1.5 * r + 0.5 * r**3, 0.0)
    np.testing.assert_allclose(gram_of(kernels.Spherical(scales, 1.7), x), expected, rtol=1e-12, atol=1e-14)


def test_spherical_is_a_covariance_in_up_to_three_dimensions():
    axis = np.linspace(0.0, 1.0, 4)
    for dimension in (1, 2, 3):
        grid = np.stack(np.meshgrid(*[axis] * dimension), axis=-1).reshape(-1, dimension)
        for scale in (0.4, 0.7, 1.3):
            assert np.linalg.eigvalsh(gram_of(kernels.Spherical(scale), grid))[0] > -1e-12
    with pytest.raises(ValueError, match="Spherical is a covariance in up to 3 dimensions, but x has 4 columns"):
        kernels.Spherical().check_inputs(4)
    with pytest.raises(ValueError, match="lengthscale has length 2, but x has 3"):
        kernels.Spherical([1.0, 2.0]).check_inputs(3)


def test_spherical_derivative_in_the_lengthscale():
    def value(scale, x):
        return kernels.Spherical(scale).evaluate(np.zeros(1), np.array([x]))

    for x in (0.0, 0.3, 0.999, 2.0):
        r = min(x, 1.0)
        np.testing.assert_allclose(jax.grad(value)(1.0, x), 1.5 * r * (1.0 - r**2), atol=1e-12)


def test_great_circle_distances_against_scikit_learn(rng):
    x = places(rng, 40)
    x[1] = x[0] + np.array([180.0, 0.0])
    x[1, 1] = -x[0, 1]  # the opposite point
    x[2] = x[0] + 1e-6
    angles = np.degrees(haversine_distances(np.radians(x[:, ::-1])))
    found = -25.0 * np.log(gram_of(kernels.GreatCircle(kernels.Matern12(25.0)), x))
    # The haversine formula has lost half of its digits between opposite points.
    np.testing.assert_allclose(found, angles, atol=1e-6)
    far = angles < 170.0
    np.testing.assert_allclose(found[far], angles[far], rtol=1e-9, atol=1e-11)
    spherical = gram_of(kernels.GreatCircle(kernels.Spherical(60.0, 2.0)), x)
    r = np.minimum(angles / 60.0, 1.0)
    np.testing.assert_allclose(spherical, 2.0 * (1.0 - 1.5 * r + 0.5 * r**3), atol=1e-11)


def test_chordal_is_the_kernel_in_space(rng):
    x = places(rng, 30)
    longitude, latitude = np.radians(x).T
    space = np.stack(
        [np.cos(latitude) * np.cos(longitude), np.cos(latitude) * np.sin(longitude), np.sin(latitude)], axis=1
    )
    for kernel in (kernels.RBF(40.0), kernels.Matern52(20.0, 3.0) + kernels.Constant(0.5), kernels.Spherical(70.0)):
        expected = gram_of(kernel, space * 180.0 / np.pi)
        np.testing.assert_allclose(gram_of(kernels.Chordal(kernel), x), expected, rtol=1e-11, atol=1e-13)


def test_both_distances_agree_over_short_ones():
    x = np.array([[10.0, 50.0], [10.3, 50.1], [10.0, 50.4]])
    pair = [kind(kernels.Matern12(1.0)) for kind in (kernels.Chordal, kernels.GreatCircle)]
    np.testing.assert_allclose(*(gram_of(kernel, x) for kernel in pair), rtol=1e-5)


@pytest.mark.parametrize(
    "kernel",
    [kernels.Matern12(20.0), kernels.Matern12(300.0), *(kernels.Spherical(c) for c in (20.0, 120.0, 179.0, 500.0))],
    ids=repr,
)
def test_allowed_kernels_have_positive_legendre_coefficients(kernel):
    # Schoenberg (1942): a function of the angle is positive definite exactly then.
    def correlation(angle):
        r = np.degrees(angle) / float(kernel.lengthscale)
        return np.exp(-r) if isinstance(kernel, kernels.Matern12) else max(1.0 - r, 0.0) ** 2 * (1.0 + 0.5 * r)

    kink = min(np.radians(float(kernel.lengthscale)), np.pi)
    for degree in range(25):
        value, error = quad(
            lambda angle, n=degree: correlation(angle) * eval_legendre(n, np.cos(angle)) * np.sin(angle),
            0.0,
            np.pi,
            points=[kink],
            limit=200,
        )
        assert value > -10.0 * error


@pytest.mark.parametrize("kernel", [kernels.RBF(), kernels.Matern32(), kernels.RationalQuadratic(), kernels.Constant()])
def test_kernels_that_are_not_positive_definite_are_refused(kernel):
    name = type(kernel).__name__
    with pytest.raises(ValueError, match=rf"GreatCircle takes a Matern12 or Spherical, got a {name}.*Chordal\({name}"):
        kernels.GreatCircle(kernel)


def test_what_is_refused_is_not_positive_definite(rng):
    x = places(rng, 300)
    angles = np.degrees(haversine_distances(np.radians(x[:, ::-1])))
    s = np.sqrt(3.0) * angles / 90.0
    assert np.linalg.eigvalsh((1.0 + s) * np.exp(-s))[0] < -1e-2


@pytest.mark.parametrize("kind", [kernels.Chordal, kernels.GreatCircle])
def test_wrong_places(kind):
    kernel, name = kind(kernels.Matern12(10.0)), kind.__name__
    kernel.check_values(np.array([[-180.0, -90.0], [360.0, 90.0]]))
    with pytest.raises(ValueError, match=f"{name} works on two columns of x, longitude and latitude, but x has 3"):
        kernel.check_inputs(3)
    with pytest.raises(ValueError, match=rf"the latitude in row 1 is 120, not between -90 and 90: .*{name}\(...\).on"):
        kernel.check_values(np.array([[50.0, 10.0], [10.0, 120.0]]))
    with pytest.raises(ValueError, match="the longitude in row 0 is 400"):
        kernel.check_values(np.array([[400.0, 10.0]]))
    with pytest.raises(ValueError, match=f"{name} takes a kernel"):
        kind(3.0)


def test_one_lengthscale_for_all_directions():
    with pytest.raises(ValueError, match="lengthscale must be a single number in GreatCircle"):
        kernels.GreatCircle(kernels.Matern12([1.0, 2.0]))
    with pytest.raises(ValueError, match="lengthscale has length 2, but x has 3"):
        kernels.Chordal(kernels.RBF([1.0, 2.0])).check_inputs(2)
