"""What `fit` learns and what it leaves alone, kernels that are no covariances, and where a search may end."""

import dataclasses
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest

import newtongp as ng
from newtongp.fitting import fit as whole
from newtongp.fitting.fit import fit
from newtongp.fitting.initial_values import Scales
from newtongp.fitting.learned import choose, left_alone, redundant
from newtongp.fitting.space import Space
from newtongp.inference.problem import Setup
from newtongp.kernels.definite import find_indefinite
from newtongp.means import Mean
from newtongp.priors.base import Prior
from newtongp.storage.registry import known_classes

K, L = ng.kernels, ng.likelihoods


class Wiener(K.Kernel):
    """Brownian motion, with a variance that is declared in one of several ways."""

    variance: Any = 1.0

    def evaluate(self, x1, x2):
        return self.variance * jnp.minimum(x1[0], x2[0])


class AnyWiener(K.Kernel):
    """The same, if only its variance were positive."""

    variance: Any = ng.learned(ng.parameters.Real(), default=1.0)

    def evaluate(self, x1, x2):
        return self.variance * jnp.minimum(x1[0], x2[0])


class Graph(K.Kernel):
    """A covariance from a table, with a field that nothing depends on."""

    table: Any
    variance: Any = ng.learned(ng.Positive(), default=1.0)
    unused: Any = ng.learned(ng.Positive(), default=2.0)
    kept: Any = ng.learned(by_default=False, default=3.0)

    def evaluate(self, x1, x2):
        return self.variance * jnp.asarray(self.table)[x1[0].astype(int), x2[0].astype(int)]


# What is learned ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_what_is_not_declared_or_has_no_influence_is_left_alone_and_named():
    rng = np.random.default_rng(0)
    root = rng.normal(size=(20, 20))
    model = ng.Model(ng.GP(Graph(root @ root.T / 20)), L.Gaussian())
    with pytest.warns(
        ng.FitWarning, match=r"kernel.table was not learned, because Graph does not declare it.*learned\("
    ):
        result = fit(model, np.arange(20.0), rng.normal(size=20), standard_errors=False)
    assert set(result.learned) == {"kernel.variance", "kernel.unused", "likelihood.variance"}
    assert set(result.notes) == {"kernel.table", "kernel.unused"}
    assert "no influence on the energy" in result.notes["kernel.unused"]
    assert np.array_equal(result.parameters["kernel.table"], model.prior.kernel.table)  # pyright: ignore
    about = {each.about for each in result.summary(checks=False).warnings}
    assert {"kernel.table", "kernel.unused"} <= about


def test_a_wish_speaks_for_what_is_not_declared():
    model = ng.Model(ng.GP(Wiener() + K.Constant()), L.Gaussian())
    assert list(left_alone(model, None)) == ["kernel[0].variance"]
    assert left_alone(model, {"variance": ng.Fixed()}) == {}
    wishes = {"kernel[0].variance": ng.Free(lower=0.0)}
    assert left_alone(model, wishes) == {}
    assert "kernel[0].variance" in [each.slot.name for each in choose(model, wishes)]
    assert "kernel[0].variance" not in [each.slot.name for each in choose(model, None)]


def test_a_declaration_holds_for_what_its_field_holds():
    class Network(eqx.Module):
        weight: Any
        size: int = eqx.field(static=True, default=3)

    class Learned(Mean):
        network: Any = ng.learned()

        def evaluate(self, x):
            return self.network.weight @ jnp.tanh(x)

    model = ng.Model(ng.GP(K.RBF(), mean=Learned(Network(np.ones(1)))), L.Gaussian())
    assert "mean.network.weight" in [each.slot.name for each in choose(model, None)]
    assert left_alone(model, None) == {}


class Own(K.Kernel):
    """A kernel with a factor of another name, and a field that is no factor."""

    amplitude: Any = ng.learned(ng.Positive(), default=1.5)
    reach: Any = ng.learned(ng.Positive(), default=1.5)

    def evaluate(self, x1, x2):
        return self.amplitude * jnp.exp(-jnp.abs(x1[0] - x2[0]) / self.reach)


@pytest.mark.parametrize(
    ("kernel", "wishes", "left_out"),
    [
        (K.Matern32() * K.Periodic(), {}, {"kernel[1].variance": "kernel[0].variance"}),
        (K.Matern32() * K.Periodic(), {"kernel[1].variance": ng.Free()}, {"kernel[0].variance": "kernel[1].variance"}),
        (K.Matern32() * K.Periodic(), {"kernel[1].variance": ng.Fixed()}, {}),
        (K.Matern32() * K.Periodic(), {"kernel[1].variance": ng.Tied("kernel[0].variance")}, {}),
        (K.Matern32() * K.Periodic(), {"kernel[0].variance": ng.Free(), "kernel[1].variance": ng.Free()}, {}),
        (2.0 * K.Matern32(), {}, {"kernel.scale": "kernel.kernel.variance"}),
        ((K.RBF() + K.Constant()) * K.Cosine(), {}, {"kernel[1].variance": "kernel[0][0].variance"}),
        (K.RBF().on(0) * K.Matern12().on(1), {}, {"kernel[1].kernel.variance": "kernel[0].kernel.variance"}),
        (Own() * K.RBF(), {}, {"kernel[1].variance": "kernel[0].amplitude"}),
        (K.RBF() + K.Constant(), {}, {}),
    ],
)
def test_of_variances_that_are_multiplied_one_is_learned(kernel, wishes, left_out):
    model = ng.Model(ng.GP(kernel), L.Gaussian())
    assert redundant(model, wishes) == left_out
    assert not set(left_out) & {each.slot.name for each in choose(model, wishes)}


@pytest.mark.slow
def test_one_variance_of_a_product_is_fixed_and_it_is_said():
    x = np.linspace(0.0, 6.0, 20)
    model = ng.Model(ng.GP(K.Matern32() * K.Matern52(lengthscale=3.0, variance=2.0)), L.Gaussian())
    result = fit(model, x, np.sin(x), standard_errors=False, max_steps=2, throw=False)
    assert "kernel[1].variance" not in result.learned and result.parameters["kernel[1].variance"] == 2.0
    said = "kernel[1].variance was not learned: only its product with kernel[0].variance is determined."
    assert said in str(result.summary(checks=False))


@pytest.mark.slow
def test_an_intercept_takes_the_place_of_the_first_threshold():
    """As only their difference is determined, and both are said: the threshold stays as it was given."""
    wine = L.Ordinal([-1.0, 0.5])
    for prior, names in (("wide", {"likelihood.first"}), ("maximised", {"likelihood.first"}), (2.0, set())):
        model = ng.Model(ng.terms.Linear("x", prior=prior) + ng.terms.Group("g"), wine)
        assert set(redundant(model, None)) == names
        assert redundant(model, {"likelihood.first": ng.Free()}) == {}
    assert redundant(ng.Model(ng.terms.Linear("x", intercept=False), wine), None) == {}
    model = ng.Model(ng.terms.Linear("x"), wine)
    table = {"x": np.linspace(-1.0, 1.0, 12), "y": [0, 0, 1, 0, 1, 0, 1, 2, 1, 2, 2, 1]}
    result = fit(model, table, "y", standard_errors=False)
    assert set(result.learned) == {"likelihood.gaps"} and result.parameters["likelihood.first"] == -1.0
    said = "likelihood.first was not learned: only its difference from the intercept of linear(x) is determined."
    assert said in str(result.summary(checks=False))


HOLDING = ("parts", "kernel", "kernels", "base", "mean", "whole", "seen", "latents", "time", "space")
"""Names of fields with other parts of the model."""


def test_every_number_in_our_own_classes_is_declared():
    """So that nothing is said of what is fixed on purpose."""
    bases = (K.Kernel, Mean, Prior, ng.Likelihood, ng.terms.Term)
    for cls in known_classes().values():
        if not issubclass(cls, bases) or not dataclasses.is_dataclass(cls):
            continue
        for field in dataclasses.fields(cls):
            holds = field.name in (
                "parts",
                "kernel",
                "kernels",
                "base",
                "mean",
                "whole",
                "seen",
                "latents",
                "time",
                "space",
            )
            given = field.name in ("exposure", "trials", "weights")  # one per row
            declared = "constraint" in field.metadata or field.metadata.get("static")
            assert holds or given or declared, f"{cls.__name__}.{field.name}"
    model = ng.Model(ng.GP(K.RBF(), mean=ng.means.Linear(1.0) + 1.0), L.Poisson(exposure=np.ones(3)))
    assert left_alone(model, None) == {}


def test_constraints_are_checked_where_they_are_made():
    with pytest.raises(ValueError, match="constraint must be a constraint such as Positive"):
        ng.learned(ng.Positive)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="lower must be less than upper"):
        ng.parameters.Between(1.0, 1.0)


@pytest.mark.parametrize(
    "constraint", [ng.parameters.Between(0.0, 1.0), ng.parameters.Between(-1e6, -1e6 + 1e-3), ng.Positive()]
)
def test_no_free_number_leads_out_of_a_constraint(constraint):
    value = np.asarray(
        0.5 * (constraint.lower + constraint.upper) if isinstance(constraint, ng.parameters.Between) else 1.0
    )

    class Likelihood(ng.Likelihood):
        share: Any = ng.learned(constraint)

        def log_prob(self, y, f):
            return -((y - f) ** 2)

    model = ng.Model(ng.GP(K.RBF()), Likelihood(value))
    setup = Setup(model, np.arange(3.0), np.zeros(3))
    space = Space(model, Scales(model, setup.data), None, True)
    for far in np.asarray(space.bounds(space.middle)).T:
        for inside in space.values_at(far)[space.slots.index(next(s for s in space.slots if "share" in s.name)) :]:
            assert np.all(np.isfinite(constraint.unconstrain(inside)))


# Covariances that are none ------------------------------------------------------------------------


class Skew(K.Kernel):
    def evaluate(self, x1, x2):
        return jnp.exp(-((x1[0] - x2[0]) ** 2)) + 0.1 * (x1[0] - x2[0])


class Box(K.Kernel):
    """1 where inputs are close, 0 elsewhere: in no dimension a covariance."""

    def evaluate(self, x1, x2):
        return jnp.where(jnp.abs(x1[0] - x2[0]) < 1.5, 1.0, 0.0)


class Growing(K.Kernel):
    """A state space form with a negative diffusion."""

    def evaluate(self, x1, x2):
        raise NotImplementedError

    def blocks(self):
        return (K.LinearSDE(np.array([[-1.0]]), np.array([[-2.0]]), np.array([[-1.0]])),)


TIMES = np.arange(1.0, 9.0)


@pytest.mark.parametrize(
    ("prior", "message"),
    [
        (ng.GP(Wiener(-1.0)), r"Wiener \(kernel\) has the variance -8 at row 7, so it is not a covariance"),
        (ng.GP(K.RBF() + 2.0 * Skew()), r"Skew \(kernel\[1\].kernel\) is not symmetric"),
        (ng.GP(K.Independent([K.RBF(), Box()])), r"Box \(kernel\[1\]\) has a covariance matrix at 8 of the rows"),
        (ng.MarkovGP(K.Matern12() + Growing()), r"Growing \(kernel\[1\]\) has the variance -1 at row 0.*blocks"),
    ],
)
def test_a_kernel_that_is_no_covariance_is_named(prior, message):
    likelihood = L.Gaussian() if prior.num_latents == 1 else L.Product(variance=1.0)
    with pytest.raises(ValueError, match=message):
        ng.infer(ng.Model(prior, likelihood), TIMES, np.zeros(8))


def test_rows_from_all_over_the_data_are_looked_at():
    x = np.linspace(0.0, 100.0, 2000)[:, None]

    class Late(K.Kernel):
        def evaluate(self, x1, x2):
            near = jnp.exp(-jnp.abs(x1[0] - x2[0]))
            return jnp.where((x1[0] > 80.0) & (x2[0] > 80.0), -near, near)

    assert find_indefinite(Late(), x, False) is not None
    assert find_indefinite(K.RBF(), x, False) is None


@pytest.mark.slow
def test_no_search_ends_at_a_kernel_that_is_no_covariance():
    """The energy of such a model may be as low as one likes."""
    x, y = np.arange(1.0, 61.0), np.random.default_rng(0).normal(size=60)
    result = fit(ng.Model(ng.GP(AnyWiener()), L.Gaussian()), x, y, standard_errors=False)
    assert result.status is ng.Status.CONVERGED
    assert result.learned["kernel.variance"] > 0.0 and result.energy > 70.0


# Where a search may end ---------------------------------------------------------------------------


class Landscape(whole.Evaluator):
    """An energy of two numbers in place of a model's."""

    def __init__(self, energy, slope, bounds=60.0):
        self.energy, self.slope = energy, slope
        self.space: Any = self
        self.count = 0
        self.work = self.matrix = 0.0
        self.units = np.array([1.0, 10.0])
        self.reach = bounds

    def bounds(self, start):
        return [(each - self.reach, each + self.reach) for each in start]

    def __call__(self, unconstrained, steepest=0.0):
        self.count += 1
        return float(self.energy(unconstrained)), np.asarray(self.slope(unconstrained))

    at = __call__


def test_a_steep_start_is_no_optimum():
    """The gradient at the start is long, and where a step along all of it leads to, energies are 1e40 and more."""
    landscape = Landscape(
        lambda f: 50.0 * np.cosh(2.0 * f[0]) + np.cosh(0.3 * f[1] - 1.0),
        lambda f: [100.0 * np.sinh(2.0 * f[0]), 0.3 * np.sinh(0.3 * f[1] - 1.0)],
    )
    found = whole.search(landscape, np.array([1.0, 0.0]), 100, 1e-5, [])
    assert found.status is ng.Status.CONVERGED and landscape.count < 60
    np.testing.assert_allclose(found.unconstrained, [0.0, 1.0 / 0.3], atol=1e-4)


def test_where_no_step_gets_lower_a_steep_slope_is_no_optimum():
    """Energies and slopes disagree: SciPy calls it a success where a step has changed nothing."""
    landscape = Landscape(lambda f: 1.0, lambda f: [0.0, 3.0])
    found = whole.search(landscape, np.zeros(2), 100, 1e-5, [])
    assert found.status is ng.Status.STEP_TOO_SMALL


def test_a_search_ends_at_its_bounds():
    landscape = Landscape(lambda f: f[0] + f[1] ** 2, lambda f: [1.0, 2.0 * f[1]], bounds=2.0)
    found = whole.search(landscape, np.array([0.0, 1.0]), 100, 1e-5, [])
    assert found.status is ng.Status.CONVERGED
    np.testing.assert_allclose(found.unconstrained, [-2.0, 0.0], atol=1e-6)


class Driven(K.Kernel):
    """A damped oscillator driven by a force with exponential covariance, as one stochastic differential equation."""

    damping: Any = ng.learned(ng.Positive(), default=1.0)
    stiffness: Any = ng.learned(ng.Positive(), default=4.0)
    lengthscale: Any = ng.learned(ng.Positive(), default=1.0)

    def evaluate(self, x1, x2):
        raise NotImplementedError

    def blocks(self):
        c, k, rate = self.damping, self.stiffness, 1.0 / self.lengthscale
        drift = jnp.array([[0.0, 1.0, 0.0], [-k, -c, 1.0], [0.0, 0.0, -rate]])
        diffusion = jnp.zeros((3, 3)).at[2, 2].set(2.0 * rate)
        pull = jnp.kron(drift, jnp.eye(3)) + jnp.kron(jnp.eye(3), drift)
        stationary = jnp.linalg.solve(pull, -diffusion.ravel()).reshape(3, 3)
        return (K.LinearSDE(drift, diffusion, stationary),)


@pytest.mark.thorough
@pytest.mark.slow
def test_a_latent_force_is_learned():
    """Against central differences of the energies that `infer` has in the end."""
    rng = np.random.default_rng(0)
    t = np.linspace(0.0, 20.0, 200)
    response = np.exp(-np.arange(20) / 5) * np.sin(np.arange(20) / 3)
    y = 0.1 * np.convolve(rng.normal(size=200), response)[:200]
    result = fit(ng.Model(ng.MarkovGP(Driven()), L.Gaussian(0.01)), t, y)
    assert result.status is ng.Status.CONVERGED and result.energy < -399.8
    assert all(np.isfinite(error) for error in result.standard_errors.values())
    best = [float(value) for value in result.learned.values()]

    def energy(values):
        return ng.infer(ng.Model(ng.MarkovGP(Driven(*values[:3])), L.Gaussian(values[3])), t, y, tol=1e-9).energy

    for index in range(4):
        up, down = (energy([v * np.exp(s * (i == index)) for i, v in enumerate(best)]) for s in (1e-3, -1e-3))
        assert abs(up - down) / 2e-3 < 1e-3 and min(up, down) > result.energy


@pytest.mark.slow
@pytest.mark.thorough
def test_a_kernel_without_finite_derivatives_is_told():
    class Rough(K.Kernel):
        lengthscale: Any = ng.learned(ng.Positive(), default=1.0)

        def evaluate(self, x1, x2):
            return jnp.exp(-jnp.sqrt(jnp.sum(((x1 - x2) / self.lengthscale) ** 2)))

    with pytest.raises(RuntimeError, match=r"no finite derivative in kernel.lengthscale: .* square root"):
        fit(ng.Model(ng.GP(Rough()), L.Gaussian()), np.arange(5.0), np.zeros(5))
