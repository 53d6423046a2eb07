"""Learning hyperparameters: gradients, optima that others find, what users can say of parameters, and interruptions."""

import itertools
import os
import pickle
import signal
import subprocess
import sys
import time
import warnings

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
from sklearn.exceptions import ConvergenceWarning as ScikitWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process import kernels as scikit

import newtongp as ng
from newtongp import parameters
from newtongp._runtime.double import in_double
from newtongp.fitting import checkpoint, objective
from newtongp.fitting import fit as whole
from newtongp.fitting.fit import fit
from newtongp.fitting.learned import choose
from newtongp.inference.compatibility import check_choices
from newtongp.inference.problem import Setup

L = ng.likelihoods


def data(kind="counts", n=20, seed=0):
    rng = np.random.default_rng(seed)
    x = np.sort(rng.uniform(0.0, 10.0, n))
    if kind == "counts":
        return x, rng.poisson(np.exp(np.sin(x))).astype(float)
    return x, np.sin(x) + 0.2 * rng.normal(size=n)


# Gradients ----------------------------------------------------------------------------------------

KERNEL = ng.kernels.Matern32(lengthscale=1.5, variance=1.2)
PRIORS = {
    "dense": ng.GP(KERNEL, mean=0.1),
    "markov": ng.MarkovGP(KERNEL + ng.kernels.Cosine(period=3.0, variance=0.3), mean=0.1),
    "sparse": ng.SparseGP(KERNEL, np.linspace(0.0, 10.0, 6)[:, None], mean=0.1),
}
METHODS = {
    "vi": ng.VI(),
    "newton": ng.Newton(),
    "power ep": ng.PowerEP(0.5),
    "pl": ng.PosteriorLinearisation(),
    "vi gauss-newton": ng.VI(curvature=ng.GaussNewton()),
    "heuristic vi": ng.VI(safeguard=ng.Heuristic()),
}
LIKELIHOODS = {
    "negative binomial": (L.NegativeBinomial(dispersion=1.5), "counts"),
    "student-t": (L.StudentT(df=4.0, scale=0.3), "real"),
}


class Energy:
    """The energy of a model at the fixed point, as a function of all that can be learned of it."""

    def __init__(self, model, x, y, method, wishes=None):
        self.learned = choose(model, wishes)
        self.slots = tuple(each.slot for each in self.learned)
        self.start = np.concatenate([each.slot.constraint.unconstrain(each.start) for each in self.learned])
        self.method, self.step = check_choices(model, method, None)
        self.bound = in_double(lambda: Setup(model, x, y).bound)()
        rows, latents = self.bound.y.shape[0], model.prior.num_latents
        self.sites = ng.Sites.constant(rows, latents, self.method.initial_precision)

    @in_double
    def at(self, unconstrained):
        found = objective.evaluate(
            self.slots, self.bound, unconstrained, self.method, self.step, self.sites, -1.0, 300, 1e-11
        )
        assert found.usable and int(found.report.status) == ng.Status.CONVERGED
        self.sites = found.report.sites
        return float(found.report.energy), np.asarray(found.gradient)


def assert_gradient(energy, tolerance):
    """By differences of fourth order; entries that are small by themselves are compared with the largest."""
    _, found = energy.at(energy.start)
    wanted = np.zeros_like(found)
    for i in range(found.size):
        values = []
        for move in (-2e-4, -1e-4, 1e-4, 2e-4):
            unconstrained = np.array(energy.start)
            unconstrained[i] += move
            values.append(energy.at(unconstrained)[0])
        wanted[i] = (values[0] - 8.0 * values[1] + 8.0 * values[2] - values[3]) / 1.2e-3
    size = np.maximum(np.abs(wanted), 1e-2 * np.max(np.abs(wanted)))
    assert np.max(np.abs(found - wanted) / size) < tolerance


QUICK = [("dense", "vi"), ("dense", "newton"), ("markov", "vi"), ("sparse", "power ep")]


def marks(prior, method, likelihood):
    """Few in every run, the methods that are asked for most in the slow one, the others now and then."""
    if likelihood == "student-t" or method in ("vi gauss-newton", "heuristic vi"):
        return [pytest.mark.slow, pytest.mark.thorough]
    return [] if (prior, method) in QUICK else [pytest.mark.slow]


CASES = [
    pytest.param(*case, marks=marks(*case), id="-".join(case))
    for case in itertools.product(PRIORS, METHODS, LIKELIHOODS)
    if case[2] == "negative binomial" or case[1] in ("vi", "newton", "power ep", "pl")
]


@pytest.mark.cases(others="thorough")
@pytest.mark.parametrize(("prior", "method", "likelihood"), CASES)
def test_gradients_of_every_energy(prior, method, likelihood):
    """Kernel, mean, likelihood and inducing inputs together."""
    chosen, kind = LIKELIHOODS[likelihood]
    wishes = {"inducing": ng.Free()} if prior == "sparse" else None
    energy = Energy(ng.Model(PRIORS[prior], chosen), *data(kind), METHODS[method], wishes)
    assert_gradient(energy, 1e-5)


@pytest.mark.slow
@pytest.mark.thorough
def test_gradients_of_matrices_weights_and_shared_values():
    """A noise covariance, a linear model's prior covariance, and two parameters with one value."""
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(15, 2)), rng.normal(size=(15, 2))
    prior = ng.LinearModel(np.array([[1.0, 0.3], [0.3, 0.5]]), num_latents=2)
    model = ng.Model(prior, L.MultivariateGaussian([[0.8, 0.2], [0.2, 0.6]]))
    assert_gradient(Energy(model, x, y, ng.VI()), 1e-5)
    kernel = ng.kernels.Periodic(period=4.0) * ng.kernels.Matern52(lengthscale=8.0)
    model = ng.Model(ng.GP(kernel), L.Poisson())
    energy = Energy(model, *data(), ng.VI(), {"kernel[1].variance": ng.Tied("kernel[0].variance")})
    assert [slot.name for slot in energy.slots].count("kernel[1].variance") == 0
    assert_gradient(energy, 1e-5)


@pytest.mark.cases(others="thorough")
@pytest.mark.parametrize("base", [ng.kernels.Matern32, ng.kernels.RBF])
def test_gradients_where_sites_are_singular(base):
    """Gauss-Newton makes sites of rank one, up to rounding, of a row that is a product of two latents."""
    x = np.linspace(0.0, 3.0, 6)
    kernel = ng.kernels.Independent([base(), base(lengthscale=2.0)])
    model = ng.Model(ng.GP(kernel, mean=ng.means.Independent([0.5, 1.0])), L.Product(variance=0.3))
    assert_gradient(Energy(model, x, np.cos(2.0 * x), ng.Taylor()), 1e-5)


# Optima that others find --------------------------------------------------------------------------


def coal_years():
    years = ng.datasets.coal().astype("datetime64[Y]").astype(int) + 1970
    counts = np.bincount(years - 1851, minlength=112)
    return np.arange(112.0), np.sqrt(counts + 0.25)


def regression_data(name):
    rng = np.random.default_rng(11)
    if name == "motorcycle":
        return ng.datasets.motorcycle()
    if name == "coal":
        return coal_years()
    if name == "signal":
        x, y, _ = ng.datasets.product()
        return x[:120], y[:120]
    x = np.sort(rng.uniform(-3.0, 5.0, 60))
    if name == "large units":
        return 1e4 * x, 1e6 * (np.sin(2.0 * x) + 0.3 * rng.normal(size=60))
    return x, 0.3 * x + np.cos(x) + 0.1 * rng.normal(size=60)


def scikit_optimum(x, y, kind):
    """The highest log marginal likelihood that scikit-learn finds, from several starts in units of the data."""
    nu = {"matern32": 1.5, "matern52": 2.5, "rbf": np.inf}[kind]
    size, spread = np.ptp(x), np.var(y)
    best = -np.inf
    for ratio in (0.03, 0.2, 1.0):
        kernel = scikit.ConstantKernel(spread, (1e-6 * spread, 1e6 * spread)) * scikit.Matern(
            ratio * size, (1e-5 * size, 1e4 * size), nu=nu
        ) + scikit.WhiteKernel(0.2 * spread, (1e-8 * spread, 1e3 * spread))
        regressor = GaussianProcessRegressor(kernel, alpha=0.0, n_restarts_optimizer=2, random_state=0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ScikitWarning)
            warnings.simplefilter("ignore", RuntimeWarning)
            regressor.fit(x[:, None], y)
        best = max(best, regressor.log_marginal_likelihood_value_)
    return best


@pytest.mark.cases(
    thorough=["signal-matern32-GP"],
    slow=["motorcycle-matern32-GP", "motorcycle-matern32-MarkovGP", "coal-matern52-GP", "coal-matern52-MarkovGP"],
)
@pytest.mark.parametrize("prior", [ng.GP, ng.MarkovGP])
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("motorcycle", "matern32"),
        ("coal", "matern52"),
        ("signal", "matern32"),
        ("trend", "matern52"),
        ("large units", "matern32"),
    ],
)
def test_exact_regression_finds_the_optimum_of_scikit_learn(name, kind, prior):
    x, y = regression_data(name)
    kernel = {"matern32": ng.kernels.Matern32, "matern52": ng.kernels.Matern52}[kind]()
    result = fit(ng.Model(prior(kernel), L.Gaussian()), x, y, standard_errors=False)
    assert result.status is ng.Status.CONVERGED
    assert abs(-result.energy - scikit_optimum(x, y, kind)) < 1e-4


def test_standard_errors_are_from_the_curvature():
    """Against the Hessian of a log marginal likelihood written in NumPy."""
    x, y = regression_data("trend")

    def negative_log_likelihood(unconstrained):
        lengthscale, variance, noise = np.exp(unconstrained)
        distance = np.sqrt(3.0) * np.abs(x[:, None] - x[None]) / lengthscale
        gram = variance * (1.0 + distance) * np.exp(-distance) + noise * np.eye(x.size)
        factor = np.linalg.cholesky(gram)
        half = np.linalg.solve(factor, y)
        return 0.5 * half @ half + np.sum(np.log(np.diag(factor))) + 0.5 * x.size * np.log(2.0 * np.pi)

    result = fit(ng.Model(ng.GP(ng.kernels.Matern32()), L.Gaussian()), x, y)
    names = ["kernel.lengthscale", "kernel.variance", "likelihood.variance"]
    unconstrained = np.log([result.learned[name] for name in names])
    steps = 1e-3 * np.eye(3)
    hessian = np.array(
        [
            [
                (
                    negative_log_likelihood(unconstrained + a + b)
                    - negative_log_likelihood(unconstrained + a - b)
                    - negative_log_likelihood(unconstrained - a + b)
                    + negative_log_likelihood(unconstrained - a - b)
                )
                / 4e-6
                for b in steps
            ]
            for a in steps
        ]
    )
    wanted = np.exp(unconstrained) * np.sqrt(np.diag(np.linalg.inv(hessian)))
    found = [result.standard_errors[name] for name in names]
    np.testing.assert_allclose(found, wanted, rtol=2e-3)
    assert abs(result.energy - negative_log_likelihood(unconstrained)) < 1e-6


@pytest.mark.parametrize("first", ["pickle", "standard_errors", "covariance"])
def test_standard_errors_of_a_quick_fit_are_computed_when_they_are_first_used(monkeypatch, first):
    x, y = data()
    model = ng.Model(ng.MarkovGP("matern32"), "poisson")
    before, evaluations = whole.Evaluator._evaluate, []

    def counted(self, *args):
        evaluations.append(args)
        return before(self, *args)

    monkeypatch.setattr(whole.Evaluator, "_evaluate", counted)
    with monkeypatch.context() as patch:
        patch.setattr(whole, "_SOON", 0)
        now = fit(model, x, y)
    count = len(evaluations)
    later = fit(model, x, y)
    assert len(evaluations) == 2 * count - 2 * len(later.learned)
    if first == "pickle":
        later = pickle.loads(pickle.dumps(later))
    used = later.covariance.matrix if first == "covariance" else now.covariance.matrix
    np.testing.assert_allclose(used, now.covariance.matrix, rtol=1e-6)
    assert later.standard_errors.keys() == now.standard_errors.keys()
    for name, error in now.standard_errors.items():
        np.testing.assert_allclose(later.standard_errors[name], error, rtol=1e-6)
    assert len(evaluations) == 2 * count  # once for all uses
    assert later.learned == now.learned and not hasattr(later, "standard_error")


# What users can say -------------------------------------------------------------------------------


def test_fixed_tied_bounded_and_prior():
    x, y = regression_data("trend")
    kernel = ng.kernels.Matern32(lengthscale=2.0) + ng.kernels.Matern32(lengthscale=1.0, variance=0.5)
    model = ng.Model(ng.GP(kernel), L.Gaussian(0.01))
    result = fit(
        model,
        x,
        y,
        parameters={
            "likelihood.variance": ng.Fixed(),
            "kernel[1].lengthscale": ng.Tied("kernel[0].lengthscale"),
            "kernel[0].lengthscale": ng.Free(lower=0.2, upper=1.0),
        },
        standard_errors=False,
    )
    assert sorted(result.learned) == ["kernel[0].lengthscale", "kernel[0].variance", "kernel[1].variance"]
    assert result.parameters["likelihood.variance"] == 0.01
    assert result.parameters["kernel[1].lengthscale"] == result.parameters["kernel[0].lengthscale"]
    # The data want a longer one.
    assert abs(result.learned["kernel[0].lengthscale"] - 1.0) < 1e-6 and result.at_bound == ["kernel[0].lengthscale"]


def test_a_prior_makes_it_a_map_estimate():
    """One parameter: SciPy minimises energy − log density as well."""
    x, y = regression_data("trend")
    prior = parameters.LogNormal(0.3, 0.1)
    wishes = {"lengthscale": ng.Fixed(), "kernel.variance": ng.Fixed(), "likelihood.variance": ng.Free(prior=prior)}
    model = ng.Model(ng.GP(ng.kernels.Matern32()), L.Gaussian())
    result = fit(model, x, y, parameters=wishes, standard_errors=False)

    def total(log_noise):
        energy = ng.infer(ng.Model(model.prior, L.Gaussian(np.exp(log_noise))), x, y).energy
        return energy - float(in_double(prior)(jnp.exp(log_noise)))

    found = scipy.optimize.minimize_scalar(total, bounds=(np.log(0.01), np.log(2.0)), method="bounded")
    assert abs(np.log(result.learned["likelihood.variance"]) - found.x) < 1e-3
    assert result.penalty != 0.0


def test_weak_priors_stop_what_the_data_cannot_decide():
    """Noise about a constant: nothing bounds the lengthscale."""
    rng = np.random.default_rng(0)
    x, y = np.linspace(0.0, 1.0, 30), 2.0 + 0.3 * rng.normal(size=30)
    found = {
        weak: fit(ng.Model(ng.GP(ng.kernels.RBF()), L.Gaussian()), x, y, weak_priors=weak, standard_errors=False)
        for weak in (True, False, "keep")
    }
    assert all(result.status is ng.Status.CONVERGED for result in found.values())
    assert found["keep"].evaluations < found[True].evaluations
    assert found["keep"].undetermined == found[True].undetermined == ["kernel.lengthscale"]
    np.testing.assert_allclose(found["keep"].learned["kernel.lengthscale"], found[True].learned["kernel.lengthscale"])
    assert 10.0 < found[True].learned["kernel.lengthscale"] < 100.0 < 0.1 * found[False].learned["kernel.lengthscale"]
    assert found[True].energy == pytest.approx(found[False].energy, abs=0.1)


@pytest.mark.slow
@pytest.mark.thorough
def test_by_name_there_is_a_mean_and_a_lengthscale_for_every_column():
    rng = np.random.default_rng(2)
    x = rng.normal(size=(50, 2)) * [1.0, 100.0]
    y = (np.sin(2.0 * x[:, 0]) + 0.3 * rng.normal(size=50) > 0.0).astype(float)
    result = fit(ng.Model(ng.GP("rbf"), "bernoulli"), x, y, standard_errors=False)
    assert result.status is ng.Status.CONVERGED
    lengthscale = result.learned["kernel.lengthscale"]
    # The second column says nothing.
    assert lengthscale.shape == (2,) and lengthscale[1] > 300.0 and lengthscale[0] < 5.0
    assert "mean.value" in result.learned


@pytest.mark.slow
@pytest.mark.thorough
def test_a_matrix_is_learned_in_any_unit_and_from_anywhere():
    rng = np.random.default_rng(1)
    x = np.linspace(0.0, 10.0, 40)
    noise = rng.multivariate_normal([0.0, 0.0], [[1.0, 0.9], [0.9, 1.0]], size=40)
    y = np.column_stack([3.0 * np.sin(x), 3.0 * np.cos(x)]) + noise
    kernel = ng.kernels.Independent([ng.kernels.Matern52(2.0), ng.kernels.Matern52(2.0)])
    model = ng.Model(ng.MarkovGP(kernel), L.MultivariateGaussian(np.eye(2)))
    small, large = (fit(model, x, unit * y, standard_errors=False, restarts=1) for unit in (1.0, 1000.0))
    np.testing.assert_allclose(large.learned["likelihood.noise"], 1e6 * small.learned["likelihood.noise"], rtol=1e-3)
    assert small.learned["likelihood.noise"][0, 1] > 0.5
    assert large.energy == pytest.approx(small.energy + y.size * np.log(1000.0), abs=1e-4)


@pytest.mark.slow
def test_nothing_to_learn_is_inference():
    x, y = data()
    model = ng.Model(ng.GP(ng.kernels.RBF()), L.Poisson())
    result = fit(model, x, y, parameters={"lengthscale": ng.Fixed(), "variance": ng.Fixed()})
    assert result.status is ng.Status.CONVERGED and result.learned == {}
    assert abs(result.energy - ng.infer(model, x, y).energy) < 1e-6


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"parameters": {"lenghtscale": ng.Fixed()}}, "has no parameter 'lenghtscale'.*kernel.lengthscale"),
        ({"parameters": {"lengthscale": 1.0}}, r'parameters\["lengthscale"\] must be Fixed\(\)'),
        ({"parameters": {"lengthscale": ng.Tied("nothing")}}, "no parameter 'nothing'"),
        (
            {"parameters": {"lengthscale": ng.Fixed(), "kernel.variance": ng.Tied("lengthscale")}},
            "kernel.variance is tied to kernel.lengthscale, which is not learned",
        ),
        ({"parameters": {"variance": ng.Free(upper=-1.0)}}, "kernel.variance is positive: its upper bound"),
        ({"parameters": {"variance": ng.Free(start=[1.0, 2.0])}}, r"start of kernel.variance has shape \(2,\)"),
        ({"parameters": {"variance": ng.Free(lower=[1.0, 2.0])}}, r"lower of kernel.variance has shape \(2,\)"),
        ({"parameters": {"variance": ng.Free(upper=2.0, start=3.0)}}, "cannot start from 3.0, not strictly"),
        ({"max_steps": -1}, "max_steps must be an integer of at least 0, got -1"),
        ({"tol": 0.0}, "tol must be greater than 0"),
        ({"restarts": 1.5}, "restarts must be an integer"),
        ({"key": "today"}, "key must be a JAX key"),
    ],
)
def test_bad_wishes_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        fit(ng.Model(ng.GP(ng.kernels.RBF()), L.Poisson()), [0.0, 1.0], [1, 2], **arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"lower": 2.0, "upper": 1.0}, "lower must be less than upper"),
        ({"prior": 3.0}, "prior must be"),
        ({"start": "a"}, "start must be a number"),
    ],
)
def test_bad_freedom_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        ng.Free(**arguments)


# Interruptions ------------------------------------------------------------------------------------

SCRIPT = """
import sys
import numpy as np
import newtongp as ng
x = np.linspace(0.0, 10.0, 40)
y = np.random.default_rng(0).poisson(np.exp(1.0 + np.sin(x)))
from newtongp.fitting import checkpoint
from newtongp.fitting import fit as whole
checkpoint.Checkpoint.PATIENCE = 0.0
before = whole.Evaluator._evaluate
def slowly(self, free, *rest):
    found = before(self, free, *rest)
    print(len(self.record), flush=True)
    if len(sys.argv) > 2 and len(self.record) == int(sys.argv[2]):
        import time
        time.sleep(100.0)
    return found
whole.Evaluator._evaluate = slowly
result = ng.fit(ng.Model(ng.MarkovGP("matern32"), "poisson"), x, y, checkpoint=sys.argv[1])
print("energy", repr(result.energy), result.evaluations)
"""


@pytest.mark.thorough
@pytest.mark.slow
def test_a_killed_fit_goes_on_where_it_was(tmp_path):
    def run(name, *arguments):
        return [sys.executable, "-c", SCRIPT, str(tmp_path / name), *arguments]

    whole = subprocess.run(run("whole"), capture_output=True, text=True, check=True).stdout.splitlines()
    with subprocess.Popen(run("killed", "9"), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.strip() == "9":
                break
        time.sleep(0.2)
        os.kill(process.pid, signal.SIGKILL)
    resumed = subprocess.run(run("killed"), capture_output=True, text=True, check=True).stdout.splitlines()
    # What was recorded was not computed again.
    assert int(resumed[0]) >= 8 and int(whole[0]) == 0
    energies = [float(lines[-1].split()[1]) for lines in (whole, resumed)]
    assert abs(energies[0] - energies[1]) < 1e-8
    assert whole[-1].split()[2] == resumed[-1].split()[2]


@pytest.mark.slow
def test_a_checkpoint_of_another_fit_is_refused(tmp_path):
    x, y = data()
    model = ng.Model(ng.GP(ng.kernels.RBF()), L.Poisson())
    file = tmp_path / "fit"
    fit(model, x, y, max_steps=1, checkpoint=file, throw=False, standard_errors=False)
    with pytest.raises(ValueError, match=r"checkpoint .* belongs to another fit"):
        fit(model, x, y + 1.0, max_steps=1, checkpoint=file)
    for other in ({"inference_steps": 3}, {"step": ng.Constant(0.5)}, {"parameters": {"variance": ng.Free(upper=9.0)}}):
        with pytest.raises(ValueError, match=r"checkpoint .* belongs to another fit"):
            fit(model, x, y, max_steps=1, checkpoint=file, **other)


def test_fewer_steps_do_not_shorten_a_checkpoint(tmp_path):
    x, y = data()
    model, file = ng.Model(ng.GP(ng.kernels.RBF()), L.Poisson()), tmp_path / "fit"
    fit(model, x, y, max_steps=3, checkpoint=file, throw=False, standard_errors=False)
    before = file.read_bytes()
    first = fit(model, x, y, max_steps=0, checkpoint=file, throw=False, standard_errors=False)
    assert first.status is ng.Status.MAX_STEPS and len(first.fit_history) == 0
    assert file.read_bytes() == before


def test_the_mark_of_a_checkpoint_knows_functions_and_no_addresses():
    def marked(source):
        """Of a function that is made anew, as in another process."""
        return checkpoint.fingerprint(ng.GP(ng.kernels.RBF(), mean=eval(source, globals(), names)), [], [])

    def first(x):
        return x[0]

    def twice(x):
        return 2.0 * x[0]

    names = {"first": first, "twice": twice}

    assert marked("lambda x: x[0]") == marked("lambda x: x[0]")
    # A body that was rewritten is not noticed; other defaults and other values that are closed over are.
    assert marked("lambda x: x[0]") == marked("lambda x: 2.0 * x[0]")
    assert marked("lambda x, a=1.0: a * x[0]") != marked("lambda x, a=2.0: a * x[0]")
    assert marked("first") != marked("twice")
    assert marked("(lambda a: lambda x: a * x[0])(1.0)") != marked("(lambda a: lambda x: a * x[0])(2.0)")
    long = "(lambda a: lambda x: a[0] * x[0])(np.arange(5000) == {})"
    assert marked(long.format(2500)) != marked(long.format(2501))


def test_inference_that_did_not_converge_is_told():
    x, y = data()
    model, step = ng.Model(ng.GP(ng.kernels.RBF()), L.Poisson()), ng.Constant(0.01)
    fixed = {"lengthscale": ng.Fixed(), "variance": ng.Fixed()}
    with pytest.warns(ng.ConvergenceWarning, match=r"max_steps \(residual .*raise inference_steps"):
        result = fit(model, x, y, step=step, parameters=fixed, inference_steps=1)
    assert result.inference_status is ng.Status.MAX_STEPS
    assert "raise inference_steps" in " ".join(str(result.summary(checks=False)).split())


def test_an_interrupt_keeps_the_best_so_far(monkeypatch):
    x, y = data()
    before, evaluations = whole.Evaluator._evaluate, []

    def interrupted(self, unconstrained, *rest):
        evaluations.append(unconstrained)
        if len(evaluations) == 10:
            raise KeyboardInterrupt
        return before(self, unconstrained, *rest)

    monkeypatch.setattr(whole.Evaluator, "_evaluate", interrupted)
    with pytest.warns(ng.ConvergenceWarning, match="interrupted"):
        result = fit(ng.Model(ng.GP(ng.kernels.RBF()), L.Poisson()), x, y)
    assert result.status is ng.Status.INTERRUPTED and np.isfinite(result.energy)
    assert len(evaluations) == 11  # the result is more exact than evaluations far from an optimum
    again = ng.infer(result.model, x, y)
    np.testing.assert_allclose(result.energy, again.energy, rtol=1e-9)
    np.testing.assert_allclose(result.marginals.mean, again.marginals.mean, atol=1e-5)


def test_an_interrupt_keeps_what_an_unfinished_search_has_found(monkeypatch):
    x, y = data()
    before, found = whole.search, []

    def search(evaluator, start, *rest):
        if found:
            before(evaluator, found[0].unconstrained, *rest)
            raise KeyboardInterrupt
        # As if the first search had ended where it began.
        best = before(evaluator, start, *rest)
        found.append(best._replace(total=evaluator(start)[0], unconstrained=start))
        return found[0]._replace(unconstrained=start)

    monkeypatch.setattr(whole, "search", search)
    model = ng.Model(ng.GP(ng.kernels.RBF()), L.Poisson())
    result = fit(model, x, y, restarts=1, throw=False, standard_errors=False)
    assert result.status is ng.Status.INTERRUPTED
    assert result.energy + result.penalty < found[0].total - 0.1


def test_an_interrupt_among_the_starts_keeps_the_best_of_them(monkeypatch):
    """Energies of starts are rough: the result is that of inference all the same."""
    x, y = data()
    before, evaluations = whole.Evaluator._evaluate, []

    def interrupted(self, unconstrained, *rest):
        evaluations.append(before(self, unconstrained, *rest))
        if len(evaluations) == 3:
            raise KeyboardInterrupt
        return evaluations[-1]

    monkeypatch.setattr(whole.Evaluator, "_evaluate", interrupted)
    result = fit(ng.Model(ng.GP(ng.kernels.RBF()), L.Poisson()), x, y, throw=False)
    assert result.status is ng.Status.INTERRUPTED
    again = ng.infer(result.model, x, y)
    np.testing.assert_allclose(result.energy, again.energy, rtol=1e-9)
    lowest = min(entry.energy for entry in evaluations[:2])
    assert abs(result.energy - lowest) < 0.1


def test_an_interrupt_before_anything_is_known_is_one(monkeypatch):
    def interrupted(self, unconstrained, *rest):
        raise KeyboardInterrupt

    monkeypatch.setattr(whole.Evaluator, "_evaluate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fit(ng.Model(ng.GP(ng.kernels.RBF()), L.Poisson()), *data())


# Trust --------------------------------------------------------------------------------------------


def simulated(kind, seed):
    """Rows to learn from and rows to be predicted, from a smooth function of its own."""
    rng = np.random.default_rng(100 + seed)
    x = np.sort(rng.uniform(0.0, 10.0, 120))
    f = np.sin(rng.uniform(0.6, 1.6) * x + rng.uniform(0.0, 6.0)) * rng.uniform(0.5, 1.5)
    if kind == "poisson":
        y = rng.poisson(np.exp(1.0 + f)).astype(float)
    elif kind == "student_t":
        y = f + 0.2 * rng.standard_t(4.0, size=x.size)
    else:
        y = f + 0.3 * rng.normal(size=x.size)
    held = rng.permutation(x.size) < 40
    return x[~held], y[~held], x[held], y[held]


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["gaussian", "poisson", "student_t"])
def test_intervals_of_new_rows_cover_what_they_promise(kind):
    covered = []
    for seed in range(10):
        x, y, x_new, y_new = simulated(kind, seed)
        result = fit(ng.Model(ng.MarkovGP("matern52"), kind), x, y, standard_errors=False)
        assert isinstance(result.status, ng.Status) and not result.status.failed
        low, high = result.predict(x_new).quantile([0.025, 0.975])
        covered.append(np.mean((y_new >= low) & (y_new <= high)))
    assert 0.90 <= np.mean(covered) <= 0.98
