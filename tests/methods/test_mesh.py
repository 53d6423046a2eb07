"""Nodes that follow the density: tilted moments and expected log densities, against panels of Gauss-Legendre nodes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

import newtongp as ng
from newtongp._runtime.double import in_double
from newtongp.methods.expectation import Derivatives, expected_log_density, tilted_expectations
from newtongp.methods.target import PowerDensity
from newtongp.numerics.gaussian import Gaussian

ROWS = 400
PANEL = np.polynomial.legendre.leggauss(20)


def graded(centre, width, reach):
    """Edges of panels that double in length on both sides of a point."""
    steps = width * 2.0 ** np.arange(-3, np.ceil(np.log2(reach / width)) + 1)
    return centre + np.concatenate([-steps[::-1], [0.0], steps])


def panels(*landmarks, low, high):
    """Nodes and weights between two ends, on panels that are short near every landmark."""
    edges = np.concatenate([graded(at, width, high - low) for at, width in landmarks] + [[low, high]])
    edges = np.unique(np.clip(edges, low, high))
    half = 0.5 * np.diff(edges)
    f = 0.5 * (edges[1:] + edges[:-1])[:, None] + half[:, None] * PANEL[0]
    return f.ravel(), (half[:, None] * PANEL[1]).ravel()


def exact_tilted(log_density, mean, scale, power, peak):
    """log Z, the tilted mean and the tilted variance."""
    far = max(mean + 12.0 * scale, peak[0] + 12.0 * scale), min(mean - 12.0 * scale, peak[0] - 12.0 * scale)
    f, w = panels((mean, scale), peak, low=far[1], high=far[0])
    terms = power * log_density(f) - 0.5 * ((f - mean) / scale) ** 2 - 0.5 * np.log(2.0 * np.pi) - np.log(scale)
    largest = terms.max()
    t = w * np.exp(terms - largest)
    total = t.sum()
    centre = t @ f / total
    return np.log(total) + largest, centre, t @ (f - centre) ** 2 / total


def student(y, f, df, scale):
    z = (y - f) / scale
    constant = special.gammaln(0.5 * df + 0.5) - special.gammaln(0.5 * df) - 0.5 * np.log(df * np.pi) - np.log(scale)
    return constant - 0.5 * (df + 1.0) * np.log1p(z**2 / df)


def student_rows(seed):
    rng = np.random.default_rng(seed)
    df = np.exp(rng.uniform(np.log(1.0), np.log(30.0), ROWS))
    width = 10.0 ** rng.uniform(-3.0, 3.0, ROWS)
    scale = 10.0 ** rng.uniform(-2.0, 2.0, ROWS)
    mean = rng.normal(size=ROWS)
    y = mean + rng.normal(size=ROWS) * scale * rng.choice([0.3, 1.0, 3.0, 10.0], ROWS)
    return y, df, width * scale, mean, scale


def tilted(likelihood, y, mean, scale, power, rule):
    gaussian = Gaussian(mean[None], scale[None, None] ** 2)
    found = tilted_expectations(likelihood, y[None], gaussian, rule, power)
    expansion = PowerDensity(power).expand(likelihood, y[None], gaussian, rule)
    derivatives = Derivatives(found.derivatives.value, power * expansion.gradient, power * expansion.hessian)
    return derivatives, mean + scale * found.mean_shift[0], scale**2 * found.whitened_covariance[0, 0]


def check_tilted(found, wanted, mean, scale, tolerance):
    derivatives, centre, variance = (jax.tree.map(np.asarray, each) for each in found)
    log_z, exact_centre, exact_variance = np.array(wanted).T
    assert np.max(np.abs(derivatives.value - log_z)) < tolerance
    assert np.max(np.abs(centre - exact_centre) / np.sqrt(exact_variance)) < tolerance
    assert np.max(np.abs(variance / exact_variance - 1.0)) < tolerance
    # Derivatives of log Z, in units of the Gaussian: ∇ log Z = (E_t[f] − m) / C and ∇² log Z = (Var_t[f] − C) / C².
    assert np.max(np.abs(derivatives.gradient[:, 0] * scale - (exact_centre - mean) / scale)) < 10.0 * tolerance
    assert np.max(np.abs(derivatives.hessian[:, 0, 0] * scale**2 - exact_variance / scale**2 + 1.0)) < 10.0 * tolerance


@pytest.mark.cases(slow=["fine-0.5"], others="thorough")
@pytest.mark.parametrize("power", [1.0, 0.5, 0.05])
@pytest.mark.parametrize(
    ("rule", "tolerance"), [(None, 1e-3), (ng.cubature.Adaptive(160), 1e-7)], ids=["default", "fine"]
)
def test_tilted_moments_of_student_noise_of_any_width(power, rule, tolerance):
    """Noise from a thousandth to a thousand times as wide as the Gaussian, observations up to 30 deviations away."""
    y, df, width, mean, scale = student_rows(int(100 * power))

    @in_double
    @jax.jit
    def ours(*rows):
        def row(y, df, width, mean, scale):
            return tilted(ng.likelihoods.StudentT(df, width), y, mean, scale, power, rule)

        return jax.vmap(row)(*rows)

    found = ours(y, df, width, mean, scale)
    wanted = [
        exact_tilted(lambda f, n=n: student(y[n], f, df[n], width[n]), mean[n], scale[n], power, (y[n], width[n]))
        for n in range(ROWS)
    ]
    check_tilted(found, wanted, mean, scale, tolerance)


class Cauchy(ng.Likelihood):
    """One that does not say where its peak is."""

    scale: jax.Array

    def log_prob(self, y, f):
        return -jnp.log(jnp.pi * self.scale) - jnp.log1p(((y - f) / self.scale) ** 2)


@pytest.mark.slow
def test_a_peak_that_is_not_known_is_found():
    y, _, width, mean, scale = student_rows(7)
    near = np.abs(y - mean) < 15.0 * scale

    @in_double
    @jax.jit
    def ours(*rows):
        return jax.vmap(lambda y, width, mean, scale: tilted(Cauchy(width), y, mean, scale, 1.0, None))(*rows)

    y, width, mean, scale = (each[near] for each in (y, width, mean, scale))
    found = ours(y, width, mean, scale)
    wanted = [
        exact_tilted(lambda f, n=n: student(y[n], f, 1.0, width[n]), mean[n], scale[n], 1.0, (y[n], width[n]))
        for n in range(y.size)
    ]
    check_tilted(found, wanted, mean, scale, 1e-3)


@pytest.mark.slow
def test_counts_far_narrower_than_the_gaussian():
    """log-concave: the peak of the tilted density is found however far it is from the Gaussian."""
    rng = np.random.default_rng(3)
    counts = np.floor(10.0 ** rng.uniform(-0.5, 6.0, ROWS))
    mean, scale = rng.normal(size=ROWS), 10.0 ** rng.uniform(-1.0, 0.7, ROWS)

    @in_double
    @jax.jit
    def ours(*rows):
        return jax.vmap(lambda y, m, s: tilted(ng.likelihoods.Poisson(), y, m, s, 1.0, None))(*rows)

    def log_density(count, f):
        return count * f - np.exp(np.minimum(f, 700.0)) - special.gammaln(count + 1.0)

    found = ours(counts, mean, scale)
    wanted = [
        exact_tilted(
            lambda f, n=n: log_density(counts[n], f),
            mean[n],
            scale[n],
            1.0,
            (np.log(counts[n] + 0.5), 1.0 / np.sqrt(counts[n] + 1.0)),
        )
        for n in range(ROWS)
    ]
    check_tilted(found, wanted, mean, scale, 1e-4)


@pytest.mark.slow
def test_expected_log_densities_of_student_noise_of_any_width():
    y, df, width, mean, scale = student_rows(11)

    @in_double
    @jax.jit
    def ours(*rows):
        def row(y, df, width, mean, scale):
            gaussian = Gaussian(mean[None], scale[None, None] ** 2)
            return expected_log_density(ng.likelihoods.StudentT(df, width), y[None], gaussian, None, descent=True)

        return jax.vmap(row)(*rows)

    found = jax.tree.map(np.asarray, ours(y, df, width, mean, scale))
    for n in range(ROWS):
        f, w = panels((mean[n], scale[n]), (y[n], width[n]), low=mean[n] - 12 * scale[n], high=mean[n] + 12 * scale[n])
        z = (f - mean[n]) / scale[n]
        w = w * np.exp(-0.5 * z**2) / np.sqrt(2.0 * np.pi) / scale[n]
        log_p = student(y[n], f, df[n], width[n])
        # By Stein's identity, without any derivative of log p.
        wanted = w @ log_p, w @ (z * log_p), w @ ((z**2 - 1.0) * log_p)
        ours_here = found.value[n], found.gradient[n, 0] * scale[n], found.hessian[n, 0, 0] * scale[n] ** 2
        np.testing.assert_allclose(ours_here, wanted, rtol=1e-4, atol=1e-5)


def test_only_one_latent_can_be_followed():
    kernel = ng.kernels.Independent([ng.kernels.RBF(), ng.kernels.RBF(), ng.kernels.RBF()])
    model = ng.Model(ng.GP(kernel), ng.likelihoods.Softmax(3))
    with pytest.raises(ValueError, match=r"Adaptive\(40\).*one latent.*leave cubature out"):
        ng.infer(model, np.arange(4.0), np.array([0, 1, 2, 1]), ng.VI(cubature=ng.cubature.Adaptive()))
    with pytest.raises(ValueError, match="count must be an integer from 16 to"):
        ng.cubature.Adaptive(3)
