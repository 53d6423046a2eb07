"""What is saved comes back the same in another process, and files that are anything else are refused."""

import copy
import dataclasses
import enum
import functools
import hashlib
import json
import os
import pickle
import struct
import subprocess
import sys
import zipfile
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import newtongp as ng
from newtongp import storage
from newtongp.methods.target import ExpectedLogDensity
from newtongp.storage import FileFormatError, decode, encode, read_file, write_file

pytestmark = pytest.mark.versions

X = np.linspace(0.0, 5.0, 8)
COUNTS = np.array([1.0, 0.0, 2.0, np.nan, 1.0, 0.0, 4.0, 2.0])
DAYS = np.datetime64("2024-03-01") + np.array([5, 0, 9, 2, 3, 11, 7, 14]) * np.timedelta64(1, "D")
K = ng.kernels


class Logistic(ng.Likelihood):
    """What a researcher would write."""

    scale: Any = 1.0

    def log_prob(self, y, f):
        return -(y - f) / self.scale - 2.0 * jnp.logaddexp(0.0, -(y - f) / self.scale) - jnp.log(self.scale)

    def mean(self, f):
        return f

    def covariance(self, f):
        return (jnp.pi * self.scale) ** 2 / 3.0 + 0.0 * f


def slowly(x):
    return 0.1 * x[0]


def infer(prior, likelihood, x=X, y=COUNTS, method=None, **options):
    return ng.infer(ng.Model(prior, likelihood), x, y, method, **options)


@functools.cache
def counts():
    """The result that most tests save."""
    return infer(ng.GP(2.0 * K.Matern32(lengthscale=0.8)), ng.likelihoods.Poisson())


@functools.cache
def sparse(storage="full"):
    return infer(ng.SparseGP(K.RBF(), inducing=4, storage=storage), ng.likelihoods.Poisson(exposure=2.0))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "result.ngp"


def there_and_back(result, path, **options):
    result.save(path)
    return ng.load(path, **options)


def same(a, b):
    """Equal in structure, static fields and every bit of their arrays."""
    leaves = [jax.tree.leaves(tree) for tree in (a, b)]
    return jax.tree.structure(a) == jax.tree.structure(b) and all(
        np.asarray(one).dtype == np.asarray(other).dtype and np.array_equal(one, other, equal_nan=True)
        for one, other in zip(*leaves, strict=True)
    )


# What comes back --------------------------------------------------------------------------------------------------


def cases():
    """A result of each prior, new inputs, and the likelihood's numbers there."""
    weights = np.stack([np.ones(8), X], axis=1)
    two = K.Independent([K.RBF(), K.Matern52(lengthscale=2.0)])
    in_time = ng.MarkovGP(K.Matern32(lengthscale=90.0), mean=1.0, unit="h", origin=DAYS[3])
    moving = ng.StateSpaceModel([[1.0, 0.1], [0.0, 1.0]], [[1e-3, 0.0], [0.0, 1e-2]], [1.0, 0.0])
    return {
        "dense": (infer(ng.GP(K.RBF(), mean=slowly), Logistic(0.5)), [0.3, 9.0], {}),
        "markov": (infer(in_time, ng.likelihoods.StudentT(), DAYS), DAYS[:3] + np.timedelta64(31, "m"), {}),
        "steps": (infer(moving, ng.likelihoods.Poisson(), [0, 1, 5, 3, 3, 7, 8, 9]), [4, 12], {}),
        "linear": (infer(ng.LinearModel([1.0, 2.0]), ng.likelihoods.Gaussian(), weights), weights[:2] + 0.5, {}),
        "sparse": (infer(ng.SparseGP(two, 3), ng.likelihoods.HeteroscedasticGaussian()), [0.3, 9.0], {}),
        "tied": (sparse("tied"), [0.3, 9.0], {}),
    }


def more_cases():
    pairs = np.stack([np.sin(X), np.cos(X)], axis=1)
    pairs[2, 0], pairs[5] = np.nan, np.nan
    two = ng.GP(K.Independent([K.RBF(), K.Matern52(lengthscale=2.0)]))
    exposed = ng.likelihoods.Poisson(exposure=np.arange(1.0, 9.0))
    in_time = ng.MarkovGP(K.Periodic(period=7.0, harmonics=2) * K.Matern12(30.0) + K.Constant(), pieces=2)
    chunks = [(X[:5], COUNTS[:5]), (X[5:], COUNTS[5:])]
    in_batches = ng.Model(ng.SparseGP(K.RBF(), inducing=4), ng.likelihoods.Poisson())
    zeros = ng.likelihoods.Chained(ng.likelihoods.NegativeBinomial(), dispersion="softplus")
    return {
        "exposed": (infer(in_time, exposed, method=ng.PowerEP(0.5)), [0.3, 9.0], {"exposure": 2.0}),
        "partly": (infer(two, ng.likelihoods.MultivariateGaussian(np.eye(2)), y=pairs), [0.3, 9.0], {}),
        "chained": (infer(two, zeros, method=ng.PosteriorLinearisation()), [0.3, 9.0], {}),
        "chunks": (ng.infer(in_batches, chunks, batch_size=4, tol=1e-3), [0.3, 9.0], {}),
    }


ELSEWHERE = """
import sys
import jax.numpy as jnp, numpy as np, newtongp as ng
from typing import Any
class Logistic(ng.Likelihood):
    scale: Any = 1.0
    def log_prob(self, y, f): return 0.0 * f
    def mean(self, f): return f
    def covariance(self, f): return (jnp.pi * self.scale) ** 2 / 3.0 + 0.0 * f
def slowly(x): return 0.1 * x[0]
found = {}
for name in sys.argv[2:]:
    result = ng.load(f"{sys.argv[1]}/{name}.ngp", classes=[Logistic, slowly])
    asked = np.load(f"{sys.argv[1]}/{name}.npz")
    rows = {key: asked[key] for key in asked.files if key != "x"}
    predicted = result.predict(asked["x"], **rows)
    found[name] = np.concatenate([np.ravel(v) for v in (
        predicted.mean, predicted.std, predicted.latent.mean, predicted.latent.covariance, result.energy
    )])
np.savez(f"{sys.argv[1]}/found.npz", **found)
"""


@pytest.mark.slow
@pytest.mark.parametrize("made", [cases, pytest.param(more_cases, marks=pytest.mark.thorough)])
def test_predictions_in_another_process_are_the_same(made, tmp_path):
    expected = {}
    for name, (result, x, rows) in made().items():
        result.save(tmp_path / f"{name}.ngp")
        np.savez(tmp_path / f"{name}.npz", x=x, **rows)
        predicted = result.predict(x, **rows)
        parts = (predicted.mean, predicted.std, predicted.latent.mean, predicted.latent.covariance, result.energy)
        expected[name] = np.concatenate([np.ravel(part) for part in parts])
    folder = jax.config.values["jax_compilation_cache_dir"]
    environment = os.environ if folder is None else {**os.environ, "JAX_COMPILATION_CACHE_DIR": str(folder)}
    subprocess.run([sys.executable, "-c", ELSEWHERE, str(tmp_path), *expected], check=True, env=environment)
    with np.load(tmp_path / "found.npz") as found:
        for name, values in expected.items():
            np.testing.assert_allclose(found[name], values, rtol=1e-12, atol=1e-12, err_msg=name)


@pytest.mark.slow
def test_everything_about_a_result_comes_back(path):
    result = counts()
    again = there_and_back(result, path)
    assert type(again) is ng.Result and repr(again) == repr(result)
    assert again.status is result.status and again.steps == result.steps
    assert again.energy == result.energy and again.residual == result.residual
    for name in ("model", "method", "data", "sites", "marginals"):
        assert same(getattr(again, name), getattr(result, name)), name
    assert again.site_marginals is again.marginals
    for name in ("energy", "objective", "step_size"):
        assert np.array_equal(getattr(again.history, name), getattr(result.history, name))
    assert np.array_equal(again.leave_one_out(), result.leave_one_out(), equal_nan=True)
    assert np.array_equal(again.sample_y(0, [0.5], 3), result.sample_y(0, [0.5], 3))
    assert same(again.posterior, result.posterior)


def test_a_loaded_result_can_be_saved_and_gone_on_from(path):
    again = there_and_back(there_and_back(counts(), path), path)
    more = ng.infer(again.model, X, COUNTS, sites=again.sites)
    assert more.steps <= 1 and abs(more.energy - counts().energy) < 1e-8


@pytest.mark.slow
def test_sparse_results_keep_their_posterior(path):
    again = there_and_back(sparse(), path)
    assert same(again.posterior, sparse().posterior)
    assert again.site_marginals is not again.marginals
    assert np.array_equal(again.leave_one_out(), sparse().leave_one_out(), equal_nan=True)
    tied = there_and_back(sparse("tied"), path)
    assert tied.sites is None and tied.marginals is None and tied.site_marginals is None
    assert same(tied.posterior, sparse("tied").posterior)


@pytest.mark.cases(slow=["sparse"])
@pytest.mark.parametrize("made", [counts, sparse])
def test_results_can_be_pickled_and_copied(made):
    result = made()
    expected = result.predict(X[:3]).mean
    for again in (pickle.loads(pickle.dumps(result)), copy.deepcopy(result)):
        assert type(again) is type(result) and again.status is result.status and again.energy == result.energy
        np.testing.assert_allclose(again.predict(X[:3]).mean, expected, rtol=1e-10)


def test_a_failed_run_can_be_kept(path):
    broken = dataclass_like(counts(), status=ng.Status.NON_FINITE, energy=float("nan"), residual=float("inf"))
    again = there_and_back(broken, path)
    assert np.isnan(again.energy) and again.residual == np.inf and again.status is ng.Status.NON_FINITE


def dataclass_like(result, **changes):
    """A result with other attributes."""
    other = object.__new__(type(result))
    vars(other).update({**vars(result), **changes})
    return other


RULES = [None, ng.cubature.GaussHermite(7), ng.cubature.Unscented(3, kappa=0.5)]
METHODS = [
    *(
        method(curvature=curvature, safeguard=safeguard)
        for method in (ng.Newton, ng.VI, ng.PowerEP)
        for curvature in (ng.Exact(), ng.QuasiNewton(damping=0.5))
        for safeguard in (None, ng.Heuristic(0.1), ng.Riemannian())
    ),
    *(ng.PosteriorLinearisation(order, cubature=rule) for order in (1, 2) for rule in RULES),
    ng.PosteriorLinearisation(slope="regression", cubature=ng.cubature.Unscented(3)),
    ng.PowerEP(0.5, cubature=ng.cubature.PointRule()),
    ng.Taylor(),
    ng.VI(curvature=ng.GaussNewton()),
    ng.Newton(curvature=ng.GaussNewton()),
    ng.FirstOrderVI(0.05, cubature=ng.cubature.GaussHermite(5)),
    ng.Method(ExpectedLogDensity(), ng.Exact()),
]
LIKELIHOODS = {name: getattr(ng.likelihoods, name) for name in ng.likelihoods.__all__}
ARGUMENTS = {
    "BetaBinomial": ([3, 4, 5],),
    "Binomial": ([3, 4, 5],),
    "Ordinal": ([-1.0, 0.5, 2.0], 1.0, "logit"),
    "Softmax": (4,),
    "AmplitudeDemodulation": (2, [[1.0], [2.0]]),
    "RegressionNetwork": (2, 1, np.eye(2)),
    "MultivariateGaussian": (np.diag([1.0, 2.0]),),
    "LinearCoregionalisation": ([[1.0, 0.0], [0.5, 1.0]], np.eye(2)),
    "Weighted": (ng.likelihoods.Poisson(exposure=[3.0, 4.0]), [0.5, 2.0]),
    "ZeroInflated": (ng.likelihoods.Poisson("softplus"),),
}
MODELS = [
    *(value(*ARGUMENTS.get(name, ())) for name, value in LIKELIHOODS.items() if name not in ("Likelihood", "Chained")),
    ng.likelihoods.Chained(ng.likelihoods.NegativeBinomial(exposure=[1.0, 2.0]), dispersion="softplus"),
    *(getattr(K, name)() for name in ("RBF", "Matern12", "Matern72", "RationalQuadratic", "Periodic", "Cosine")),
    *(
        getattr(K, name)()
        for name in ("Constant", "Linear", "White", "Brownian", "IntegratedBrownian", "IntegratedMatern12")
    ),
    *(getattr(K, name)() for name in ("Category", "SeasonalWalk", "Spherical", "Walk")),
    *(K.Graph([(0, 1), (1, 2), (2, 3), (3, 0)], kind, nodes=5) for kind in ("icar", "bym2", "leroux")),
    K.Chordal(K.Matern52()) + K.GreatCircle(K.Spherical(20.0)),
    ng.likelihoods.Gaussian([0.1, 0.2]),
    K.Graph([(0, 1), (1, 2)]).phi_prior(),
    ng.parameters.PCVariance(1.0, 0.01),
    ng.parameters.PCStandardDeviation(1.0, 0.01),
    (3.0 * K.RBF([1.0, 2.0], order=4).on(2, 0) + K.Linear() * K.Cosine().on(1)).on(0, 1, 2),
    ng.means.Independent([ng.means.Linear([1.0, 2.0]) + 1.0, None, 3.0]),
    *(ng.MarkovGP(K.Matern32(), unit=unit, pieces=2) for unit in (None, "D", np.timedelta64(90, "m"))),
    ng.SparseGP(K.Independent([K.RBF(), K.RBF()]), [np.zeros((3, 2)), np.ones((4, 2))], selection="kmeans", seed=3),
    ng.LinearModel([[2.0, 0.5], [0.5, 1.0]], mean=[[1.0, 2.0], [0.0, 0.0]], num_latents=2),
    ng.StateSpaceModel(np.stack([np.eye(2)] * 3), np.eye(2), [[1.0, 2.0]], observation_offset=3.0),
]
STEPS = [ng.Constant(0.5), ng.Backtracking(), ng.Damped()]


@pytest.mark.parametrize("value", [*METHODS, *MODELS, *STEPS], ids=lambda value: type(value).__name__)
def test_objects_come_back_equal(value):
    tree, arrays = encode(value)
    assert same(decode(json.loads(json.dumps(tree)), arrays), value)


@pytest.mark.parametrize(
    "method", [ng.VI(cubature=ng.cubature.Unscented(3)), ng.PowerEP(0.5), ng.FirstOrderVI()], ids=repr
)
def test_results_keep_their_method(method, path):
    assert same(there_and_back(dataclass_like(counts(), method=method), path).method, method)


class Colour(enum.Enum):
    RED = "red"


class Pair(NamedTuple):
    first: Any
    second: Any = 2


@dataclasses.dataclass(frozen=True)
class Report:
    name: str
    rates: np.ndarray


def test_trees_of_all_kinds_come_back(path):
    tree = {
        "numbers": (1, -2.5, True, None, 2**70, 1e300, -0.0),
        "infinite": [float("inf"), float("-inf")],
        "text": ("ρ and \ud800 and \n", "array"),
        3: {"nested": {}, "empty": ()},
        "scalars": (np.float32(1.5), np.int64(3), np.bool_(True), np.datetime64("2020-01-01", "ms")),
        "enum": (ng.Status.CONVERGED, Colour.RED),
        "named": Pair(1),
    }
    write_file(path, "checkpoint", tree)
    again = read_file(path, "checkpoint", [Colour, Pair])
    assert again == tree and repr(again) == repr(tree)
    assert decode(*encode(np.array(["a"])[0])) == "a"
    assert [type(each) for each in again["scalars"]] == [type(each) for each in tree["scalars"]]


@pytest.mark.cases(slow=["shape4-<u4", "shape4-<f2", "shape4-<f4", "shape4->f8", "shape4-M8[us]", "shape4-m8[25s]"])
@pytest.mark.parametrize("dtype", ["?", "i1", "u1", "<i4", ">i8", "<u4", "<f2", "<f4", ">f8", "M8[us]", "m8[25s]"])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 3), (2, 3)])
def test_arrays_come_back(dtype, shape, path):
    array = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)
    write_file(path, "checkpoint", {"a": array, "b": array.T})
    again = read_file(path, "checkpoint")
    assert again["a"].dtype == array.dtype.newbyteorder("=") and again["a"].shape == shape
    assert np.array_equal(again["a"], array) and np.array_equal(again["b"], array.T)
    assert again["a"].flags.writeable and again["a"].flags.owndata


def test_an_array_is_kept_once(path):
    large = np.ones(10_000)
    write_file(path, "checkpoint", [large, {"same": large}, jnp.asarray(large)])
    assert 2 * large.nbytes > path.stat().st_size
    assert isinstance(read_file(path, "checkpoint")[2], np.ndarray)


def test_objects_of_users_need_their_classes(path):
    write_file(path, "checkpoint", {"report": Report("a", np.ones(2)), "noise": Logistic(2.0)})
    again = read_file(path, "checkpoint", [Report, Logistic])
    assert again["report"].name == "a" and same(again["noise"], Logistic(2.0))
    with pytest.raises(FileFormatError, match=r"of custom classes, Logistic and Report.*classes=\[Logistic, Report\]"):
        read_file(path, "checkpoint")
    with pytest.raises(FileFormatError, match=r"objects of custom classes, Logistic:"):
        read_file(path, "checkpoint", [Report])
    changed = dataclasses.make_dataclass("Report", ["name"])
    with pytest.raises(FileFormatError, match=r"Report has no field 'rates': the class has changed"):
        read_file(path, "checkpoint", [changed, Logistic])
    more = dataclasses.make_dataclass("Report", ["name", "rates", "third"])
    with pytest.raises(FileFormatError, match=r"Report needs the field 'third'"):
        read_file(path, "checkpoint", [more, Logistic])
    with pytest.raises(FileFormatError, match=r"cannot be \{'object': 'user.Report'"):
        read_file(path, "checkpoint", [functools.update_wrapper(lambda: None, Report), Logistic])


def test_a_field_that_has_come_later_has_its_default(path):
    old = eqx.tree_at(lambda k: k.lengthscale, K.RBF(), 2.0)
    tree, arrays = encode(old)
    del tree["fields"]["order"], tree["fields"]["variance"]
    again = decode(tree, arrays)
    assert again.order == K.RBF().order and again.variance == 1.0 and isinstance(again.variance, np.ndarray)


class Fitted(ng.Result):
    """A kind of result with more in it."""

    @functools.cached_property
    def expensive(self):
        return object()


def test_results_of_other_classes_keep_what_they_have(path):
    fitted = object.__new__(Fitted)
    vars(fitted).update(vars(counts()), parameters={"lengthscale": np.ones(1)}, findings=Report("a", np.zeros(1)))
    assert fitted.expensive is fitted.expensive
    again = there_and_back(fitted, path, classes=[Fitted, Report])
    assert type(again) is Fitted and again.parameters == {"lengthscale": 1.0} and again.findings.name == "a"
    assert again.expensive is not fitted.expensive
    assert np.array_equal(again.predict([0.5]).mean, counts().predict([0.5]).mean)


# What cannot be saved ---------------------------------------------------------------------------------------------


def with_mean(mean):
    prior = ng.GP(counts().model.prior.kernel, mean=mean)
    return dataclass_like(counts(), model=ng.Model(prior, counts().model.likelihood))


@pytest.mark.parametrize(
    "function", [lambda x: x[0], functools.partial(slowly), [3].index], ids=["lambda", "partial", "m"]
)
def test_code_without_a_name_cannot_be_saved(function, path):
    with pytest.raises(ValueError, match=r"result\.model\.prior\.mean\.parts\[0\]\.function cannot be saved.*no code"):
        with_mean(function).save(path)
    assert not path.exists()


def test_a_function_with_a_name_is_given_again(path):
    with_mean(slowly).save(path)
    assert ng.load(path, classes=[slowly]).model.prior.mean.parts[0].function is slowly
    with pytest.raises(FileFormatError, match=r"classes=\[slowly\]"):
        ng.load(path)


def itself():
    loop = []
    loop.append(loop)
    return loop


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (object(), r"checkpoint\['it'\] cannot be saved: it is of type object"),
        (b"bytes", "of type bytes"),
        (1j, "of type complex"),
        ({1.5: 2}, "keys must be text or integers"),
        (np.array([None]), "no arrays of the type object"),
        (np.array(["text"]), "no arrays of the type <U4"),
        (np.ones(2, dtype=complex), "no arrays of the type complex128"),
        (np.ma.masked_array([1.0], [True]), "no masked arrays"),
        (jax.random.key(0), "no arrays of the type key"),
        (itself(), "more than 100 deep"),
        (Report, "of type type"),
        (
            (Report("a", 1), dataclasses.make_dataclass("Report", [])()),
            "another class or function is also called Report",
        ),
        (eqx.tree_at(lambda k: k.variance, K.RBF(), np.nan), "RBF must be finite, got nan"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else type(value).__name__,
)
def test_what_cannot_be_loaded_is_not_written(value, message, path):
    with pytest.raises(ValueError, match=message):
        write_file(path, "checkpoint", {"it": value})
    assert list(path.parent.iterdir()) == []


def test_long_lists_belong_in_arrays(path, monkeypatch):
    monkeypatch.setattr(storage.container, "_LARGEST_HEADER", 1000)
    with pytest.raises(ValueError, match="put lists of numbers into arrays"):
        write_file(path, "checkpoint", list(range(1000)))


@pytest.mark.parametrize("name", [3, None, "nowhere/at/all/x.ngp", "."])
def test_where_nothing_can_be_written(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"path (must be the name of a file|is in a folder that does not exist)"):
        counts().save(name)
    with pytest.raises(ValueError, match="result must be a Result, as infer returns"):
        storage.save(3, "x.ngp")  # pyright: ignore


def test_devices_are_not_replaced(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(ValueError, match="is not: choose another name"):
        counts().save(pipe)
    with pytest.raises(FileFormatError, match="it is not a file"):
        ng.load(pipe)


@pytest.mark.parametrize(
    "classes", ["Logistic", Logistic, 3, [3], [Logistic(), Logistic], [Pair, NamedTuple("Pair", [])]]
)
def test_classes_are_checked(classes, path):
    with pytest.raises(ValueError, match="classes must"):
        ng.load(path, classes=classes)


# Writing ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("broken", ["replace", "fsync"])
def test_an_interrupted_save_leaves_the_earlier_file(broken, path, monkeypatch):
    write_file(path, "checkpoint", 1)

    def fail(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, broken, fail)
    with pytest.raises(KeyboardInterrupt):
        write_file(path, "checkpoint", 2)
    assert read_file(path, "checkpoint") == 1
    assert [each.name for each in path.parent.iterdir()] == ["result.ngp"]


KILLED = """
import os, signal, sys, numpy as np
from newtongp import storage
def die(*_): os.kill(os.getpid(), signal.SIGKILL)
if sys.argv[2] == "replace": os.replace = die
else:
    broken = type("Hash", (), {"update": die, "digest": die})
    storage.container.hashlib = type("Hashes", (), {"sha256": lambda *_: broken()})
storage.write_file(sys.argv[1], "checkpoint", {"x": np.ones(100_000)})
"""


@pytest.mark.cases(quick=["writing"], others="slow")
@pytest.mark.parametrize("when", ["replace", "writing"])
def test_a_process_that_is_killed_leaves_the_earlier_file(when, path):
    write_file(path, "checkpoint", 1)
    ended = subprocess.run([sys.executable, "-c", KILLED, str(path), when])
    assert ended.returncode < 0
    assert read_file(path, "checkpoint") == 1
    [left] = [each for each in path.parent.iterdir() if each != path]
    assert left.suffix == ".tmp"
    if when == "writing":
        with pytest.raises(FileFormatError):
            read_file(left, "checkpoint")


def test_files_are_as_readable_as_others_and_links_stay(path, tmp_path):
    plain, link = tmp_path / "plain", tmp_path / "link"
    plain.touch()
    link.symlink_to(path)
    write_file(link, "checkpoint", 1)
    assert link.is_symlink() and read_file(path, "checkpoint") == 1
    assert path.stat().st_mode == plain.stat().st_mode


# Hostile files ----------------------------------------------------------------------------------------------------


def forge(path, header, body=b"", version=1, magic=b"\x89NGP\r\n\x1a\n", length=None):
    """A file with whatever in it, and the checksum of that."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    content = struct.pack("<8sIQ", magic, version, len(text) if length is None else length) + text + body
    path.write_bytes(content + hashlib.sha256(content).digest())


def header(tree=None, arrays=(), kind="result", **more):
    return {"newtongp": "0.1.0", "kind": kind, "arrays": list(arrays), "tree": tree, **more}


def parts_of(path):
    """The header and the bytes of the arrays of a file."""
    content = path.read_bytes()
    _, _, length = struct.unpack_from("<8sIQ", content)
    return json.loads(content[20 : 20 + length]), content[20 + length : -32]


def refused(path, message, **options):
    with pytest.raises(FileFormatError, match=message) as caught:
        ng.load(path, **options)
    assert str(path) in str(caught.value)


class Payload:
    def __reduce__(self):
        return os.mkdir, (f"{os.environ['PAYLOAD']}",)


def test_a_forged_file_is_what_it_should_be(path):
    counts().save(path)
    found, body = parts_of(path)
    forge(path, found, body)
    assert repr(ng.load(path)) == repr(counts())


def test_foreign_files_are_refused(path, tmp_path, monkeypatch):
    monkeypatch.setenv("PAYLOAD", str(tmp_path / "run"))
    foreign = "it is not a newtongp file"
    for content in (b"", b"\x89PNG\r\n\x1a\n" + b"\0" * 100, b"\x89NG", b"{}", b"x" * 3000, pickle.dumps(Payload())):
        path.write_bytes(content)
        refused(path, foreign)
    assert not (tmp_path / "run").exists()
    np.savez(tmp_path / "arrays.npz", a=np.array([Payload()]))
    refused(tmp_path / "arrays.npz", foreign)
    with zipfile.ZipFile(tmp_path / "up.zip", "w") as archive:
        archive.writestr("../header.json", json.dumps(header()))
    refused(tmp_path / "up.zip", foreign)
    refused(tmp_path, "it is not a file")
    with pytest.raises(FileNotFoundError):
        ng.load(tmp_path / "nowhere.ngp")


def test_damaged_files_are_refused(path):
    counts().save(path)
    content = path.read_bytes()
    rng = np.random.default_rng(0)
    for cut in [1, 8, 20, 33, *rng.integers(20, len(content), 30), len(content) - 1]:
        path.write_bytes(content[:cut])
        refused(path, "damaged or incomplete|not a newtongp file")
    for at in [*range(0, 20), *rng.integers(20, len(content), 60), len(content) - 1]:
        path.write_bytes(content[:at] + bytes([content[at] ^ (1 << int(rng.integers(8)))]) + content[at + 1 :])
        refused(path, "damaged or incomplete|not a newtongp file|version")
    path.write_bytes(content + b"\0")
    refused(path, "damaged or incomplete")


def test_versions_and_kinds(path):
    forge(path, header(), version=2)
    refused(path, "version 2 of the format, but this newtongp reads version 1: load it with the newtongp that wrote")
    forge(path, header(kind="checkpoint"))
    refused(path, "it holds a checkpoint, not a result")


@pytest.mark.parametrize("length", [0, 3, 10**3, 2**22 + 1, 2**63, 2**64 - 1])
def test_lengths_of_headers(length, path):
    forge(path, header(), length=length)
    refused(path, "damaged|header|arrays would take")


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (["<f8", [10**15]], r"would take 8000000000000000 bytes, but it has 16"),
        (["<f8", [2**62, 2**62]], "would take"),
        (["<f8", [1]], "would take 8 bytes"),
        (["<f8", [0, 10**15, 3]], "would take 0 bytes"),
        (["<f8", [-2]], "declares an array as"),
        (["<f8", [True, 2]], "declares an array as"),
        (["<f8", [2.0]], "declares an array as"),
        (["<f8", [1] * 40 + [2]], "declares an array as"),
        (["<f8", "2"], "declares an array as"),
        (["|O", [2]], r"type '\|O', which is not a type of numbers or times"),
        (["O", [2]], "not a type of numbers"),
        (["|V8", [2]], "not a type of numbers"),
        (["<U2", [2]], "not a type of numbers"),
        (["<M8[eons]", [2]], "not a type of numbers"),
        ([["<f8"], [2]], "declares an array as"),
        (["|b1", [16]], "neither true nor false"),
        (3, "declares an array as"),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_declared_arrays(array, message, path):
    forge(path, header({"array": 0}, [array]), b"\x02" * 16)
    refused(path, message)


def test_empty_arrays_with_endless_sides(path):
    forge(path, header({"array": 0}, [["<f8", [0, 2**40]]]))
    refused(path, "larger than the file")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"[" * 1000, "more than 100 deep"),
        (b'{"a":' * 1000 + b"1" + b"}" * 1000, "more than 100 deep"),
        (b"not json", "cannot be read"),
        (b"\xff\xfe", "cannot be read"),
        (b'{"kind": "result", "kind": "result"}', "occurs twice"),
        (b"[1, NaN]", "NaN is not a number"),
        (b"[" + b"9" * 10_000 + b"]", "cannot be read"),
        (b"[]", "does not have the expected parts"),
        (json.dumps(header(extra=1)).encode(), "does not have the expected parts"),
        (json.dumps(header(kind=3)).encode(), "does not have the expected parts"),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_headers(text, message, path):
    forge(path, text)
    refused(path, message)


def deep(levels):
    tree = 1
    for _ in range(levels):
        tree = {"tuple": [tree]}
    return tree


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        (3, "it is not a result|cannot be 3"),
        ([1, 2], r"cannot be \[1, 2\]"),
        ({}, r"cannot be \{\}"),
        ({"tuple": [], "list": []}, "cannot be"),
        ({"array": 0}, "cannot be"),
        ({"array": -1}, "cannot be"),
        ({"scalar": 0}, "cannot be"),
        ({"float": "1e3"}, "cannot be"),
        ({"dict": [[1.5, 2]]}, "cannot be"),
        ({"dict": [["a"]]}, "cannot be"),
        (deep(102), "more than 100 deep"),
        ({"object": "os.system", "fields": {}}, "'os.system', which this newtongp does not have"),
        ({"object": "builtins.eval", "fields": {}}, "which this newtongp does not have"),
        ({"object": "newtongp.results.Result", "fields": {}}, "which this newtongp does not have"),
        ({"object": "kernels.Kernel", "fields": {}}, "which this newtongp does not have"),
        ({"object": "infer.Run", "fields": {}}, "which this newtongp does not have"),
        ({"object": "programs._Program", "fields": {}}, "which this newtongp does not have"),
        ({"object": "user.Payload", "fields": {}}, r"classes=\[Payload\]"),
        ({"function": "system"}, r"classes=\[system\]"),
        ({"enum": "results.Status", "name": "__class__"}, "cannot be"),
        ({"enum": "kernels.RBF", "name": "evaluate"}, "cannot be"),
        ({"object": "results.Status", "fields": {}}, "cannot be"),
        ({"object": "kernels.RBF", "fields": {"__class__": 1}}, "has no field '__class__'"),
        ({"object": "results.Result", "fields": {}}, "'model' is unexpected or missing"),
    ],
    ids=lambda value: repr(value)[:50],
)
def test_trees(tree, message, path):
    forge(path, header(tree))
    refused(path, message)


def test_what_is_no_result_is_not_loaded_as_one(path):
    write_file(path, "result", K.RBF())
    refused(path, "it is not a result, but RBF")


def altered(path, change):
    """The file with its tree changed."""
    found, body = parts_of(path)
    change(found["tree"]["fields"], found["arrays"])
    forge(path, found, body)


def put(*keys, value):
    def change(fields, arrays):
        node: Any = fields
        for key in keys[:-1]:
            node = node[key]
            node = node["fields"] if isinstance(node, dict) and "fields" in node else node
        node[keys[-1]] = value

    return change


def shape_of(name, shape):
    """The shape of an array of this field of the result, with as many entries as before."""

    def change(fields, arrays):
        node = fields[name]
        while "array" not in node:
            node = next(iter(node["fields"].values()))
        arrays[node["array"]][1] = shape

    return change


MANY_HARMONICS = {"object": "kernels.Periodic", "fields": {"harmonics": 10**9}}
POWER = {"object": "methods.PowerDensity", "fields": {"alpha": -1.0}}
POISSON = {"object": "likelihoods.Poisson", "fields": {"link": "exp", "exposure": 1.0}}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (put("model", value=3), r"\.model cannot be 3"),
        (put("model", "prior", value=POISSON), r"model\.prior of Model cannot be"),
        (put("model", "prior", "kernel", value=None), r"kernel of GP cannot be None"),
        (put("model", "prior", "kernel", value="RBF"), r"kernel of GP cannot be 'RBF'"),
        (put("model", "prior", "kernel", "scale", value="2"), r"scale of Scaled cannot be '2'"),
        (put("model", "prior", "kernel", "scale", value={"list": []}), r"scale of Scaled cannot be \[\]"),
        (put("model", "prior", "kernel", "scale", value=-2.0), "must be greater than 0, got -2.0"),
        (put("model", "prior", "kernel", "scale", value={"float": "nan"}), "must be finite"),
        (put("model", "prior", "mean", value=1.0), "mean cannot be 1.0"),
        (put("model", "likelihood", "link", value=3), "link of Poisson cannot be 3"),
        (
            put("model", "likelihood", "link", value="|V8"),
            r"cannot be a Poisson: link must be one of 'exp', 'softplus'",
        ),
        (put("model", "likelihood", "exposure", value=-1.0), "cannot be a Poisson: exposure must be greater than 0"),
        (put("model", "likelihood", "exposure", value=None), "exposure of Poisson cannot be None"),
        (put("model", "prior", "kernel", "scale", value=None), "cannot be a Scaled: scale must be a number, got None"),
        (
            put("model", "prior", "kernel", "kernel", value=MANY_HARMONICS),
            "harmonics must be an integer from 0 to 1000",
        ),
        (put("model", "prior", "by_name", value=True), "has no name to be given by"),
        (put("method", "target", value=POWER), "alpha must be greater than 0 and at most 1"),
        (put("status", "name", value="RUNNING"), "status must be final, not RUNNING"),
        (put("energy", value={"float": "nan"}), "energy must be finite, got nan"),
        (put("residual", value=-1.0), "residual must be at least 0"),
        (put("steps", value=10**9), "steps cannot be 1000000000 with a history of"),
        (put("model", "likelihood", "exposure", value={"float": "inf"}), "must be finite"),
        (put("model", "likelihood", value={"object": "likelihoods.Softmax", "fields": {"num_classes": 3}}), "latent"),
        (put("model", "likelihood", value={"object": "likelihoods.Bernoulli", "fields": {"link": "logit"}}), "lapse"),
        (put("method", value=POISSON), r"\.method cannot be"),
        (put("method", "target", value=None), "target of Method cannot be None"),
        (put("status", value=1), r"\.status cannot be 1"),
        (put("energy", value="low"), r"\.energy cannot be 'low'"),
        (put("energy", value={"enum": "results.Status", "name": "CONVERGED"}), r"\.energy cannot be <Status"),
        (put("steps", value=-1), "steps cannot be -1"),
        (put("steps", value=True), r"\.steps cannot be True"),
        (put("data", value=None), "posterior cannot be missing"),
        (put("sites", value=None), "posterior cannot be missing"),
        (put("posterior", value=POISSON), r"\.posterior cannot be"),
        (put("predict", value=1), "'predict' is unexpected"),
        (put("_condition", value=1), "'_condition' is unexpected"),
        (put("history", "energy", value=None), "energy must be a vector"),
        (put("history", "extra", value=None), "its parts are"),
        (put("data", "y", value={"array": 10**6}), "cannot be"),
        (put("data", "y", value=None), "y must be a matrix"),
        (put("data", "seen", value=1), "seen must be like y"),
        (shape_of("sites", [4, 2]), r"shapes are \(4, 2\) and \(8, 1, 1\)"),
        (shape_of("data", [4, 2]), "y must be a matrix with 4 row"),
    ],
)
def test_results_with_wrong_parts_are_refused(change, message, path):
    counts().save(path)
    altered(path, change)
    refused(path, message)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (put("posterior", value=None), "posterior cannot be missing"),
        (put("posterior", "half", value=None), "half does not fit"),
        (put("posterior", "whitened_mean", value=1.0), "whitened_mean does not fit"),
        (put("posterior", "projection", "inducing", value={"tuple": []}), r"there must be 1 set"),
        (put("posterior", "projection", "inducing", value=None), "inducing of Projection cannot be None"),
        (put("model", "prior", "storage", value="elsewhere"), "storage must be"),
        (put("model", "prior", "count", value=None), "given or counted"),
    ],
)
def test_sparse_results_with_wrong_parts_are_refused(change, message, path):
    sparse().save(path)
    altered(path, change)
    refused(path, message)


@functools.cache
def learned():
    """A FitResult without the fit."""
    told = {"status": ng.Status.CONVERGED, "at_bound": [], "penalty": 0.0, "evaluations": 7, "seconds": 1.5}
    values = {each.name: each.value for each in ng.hyperparameters(counts().model)}
    first, second, *_ = values
    told |= {"learned": values, "standard_errors": {first: np.array(np.inf)}, "priors": {first: slowly}}
    return ng.results.FitResult(counts(), fit_history=np.array([3.0, 2.0]), tied={second: first}, **told)


def leave_out(name):
    return lambda fields, arrays: fields.pop(name)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (leave_out("learned"), "'learned' is unexpected or missing in a FitResult"),
        (leave_out("tied"), "'tied' is unexpected or missing"),
        (put("learned", value={"dict": [["a", None]]}), r"\.learned cannot be"),
        (put("learned", value={"dict": [["a", "b"]]}), r"\.learned cannot be"),
        (put("standard_errors", value={"list": []}), r"\.standard_errors cannot be \[\]"),
        (put("tied", value=5), r"\.tied cannot be 5"),
        (put("tied", value={"dict": [["a", 5]]}), r"\.tied cannot be {'a': 5}"),
        (put("priors", value={"dict": [["a", 1.0]]}), r"\.priors cannot be"),
        (put("at_bound", value={"list": [1]}), r"\.at_bound cannot be \[1\]"),
        (put("inference_status", value="converged"), r"\.inference_status cannot be 'converged'"),
        (put("fit_history", value=None), r"\.fit_history cannot be None"),
        (put("evaluations", value=-1), "evaluations cannot be -1"),
        (put("seconds", value={"float": "nan"}), "seconds cannot be nan"),
        (put("parameters", value=1), "'parameters' is unexpected"),
    ],
)
def test_fits_with_wrong_parts_are_refused(change, message, path):
    learned().save(path)
    again = ng.load(path, classes=[slowly])
    assert again.summary(checks=False).as_dict() == learned().summary(checks=False).as_dict()
    altered(path, change)
    refused(path, message, classes=[slowly])


def test_wrong_clocks_and_matrices_are_refused():
    tree, arrays = encode(ng.MarkovGP(K.Matern32(), unit="D"))
    with pytest.raises(FileFormatError, match=r"clock.* cannot be a Clock: unit must be a positive duration"):
        decode(tree, [np.array(-1, "m8[D]") if each.dtype.kind == "m" else each for each in arrays])
    tree, arrays = encode(ng.StateSpaceModel(np.eye(2), np.eye(2), [1.0, 0.0]))
    with pytest.raises(FileFormatError, match="cannot be a StateSpaceModel: noise must be positive semi-definite"):
        decode(tree, [arrays[0], -arrays[1], *arrays[2:]])
    tree, arrays = encode(ng.LinearModel(np.eye(2)))
    with pytest.raises(FileFormatError, match="cannot be a LinearModel: prior_covariance must be positive"):
        decode(tree, [-each for each in arrays])


@pytest.mark.slow
def test_numbers_are_read_as_constructors_read_them(path):
    infer(ng.MarkovGP(K.Matern32(), pieces=1), ng.likelihoods.Poisson(), throw=False).save(path)
    altered(path, put("model", "prior", "kernel", "variance", value=2**200))
    assert same(ng.load(path).model.prior.kernel, K.Matern32(variance=2.0**200))
    for pieces in (0, 10**6):
        altered(path, put("model", "prior", "pieces", value=pieces))
        refused(path, f"pieces must be an integer from 1 to 65536, or None for a choice by speed, got {pieces}")


def test_energies_are_floats(path):
    counts().save(path)
    altered(path, put("energy", value=2**200))
    assert type(ng.load(path).energy) is float and ng.load(path).energy == 2.0**200
    altered(path, put("energy", value=10**400))
    refused(path, "int too large to convert to float")


def test_hyperparameters_of_users_stay_where_they_may_be():
    class Positive(ng.Likelihood):
        scale: Any = ng.parameters.learned(ng.parameters.Positive(), default=1.0)

        def log_prob(self, y, f):
            return -jnp.abs(y - f) / self.scale

    tree, arrays = encode(Positive(np.array(2.0)))
    assert same(decode(tree, arrays, [Positive]), Positive(np.array(2.0)))
    with pytest.raises(FileFormatError, match=r"a hyperparameter in Positive\(\) cannot be"):
        decode(tree, [-each for each in arrays], [Positive])


@pytest.mark.slow
def test_loading_leaves_the_names_of_the_package_alone():
    code = "import newtongp as ng; from newtongp import storage; storage.registry.known_classes(); "
    code += "print([name for name in ng.__all__ if not hasattr(ng, name)], callable(ng.infer), callable(ng.load))"
    ran = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert ran.stdout.strip() == "[] True True"
    assert len(set(storage.registry.known_classes().values())) == len(storage.registry.known_classes())


def places(tree, at=()):
    """Where something is in a tree of JSON."""
    parts = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, part in parts:
        yield (*at, key)
        yield from places(part, (*at, key))


def at(tree, place):
    return functools.reduce(lambda part, key: part[key], place, tree)


@pytest.mark.parametrize("result", [counts, sparse, learned])
def test_whatever_is_in_a_file_it_is_loaded_or_refused(result):
    tree, arrays = encode(result())
    text, rng = json.dumps(tree), np.random.default_rng(0)
    junk = [None, True, -1, 10**30, "x", {}, [], {"float": "nan"}, {"array": 0}, {"scalar": 1}, {"tuple": []}]
    junk += [at(tree, place) for place in places(tree)]
    refusals = 0
    for _ in range(100):
        changed = json.loads(text)
        everywhere = list(places(changed))
        place = everywhere[rng.integers(len(everywhere))]
        at(changed, place[:-1])[place[-1]] = json.loads(json.dumps(junk[rng.integers(len(junk))]))
        others = [each if rng.random() > 0.02 else each[..., None] for each in arrays]
        try:
            decode(changed, others, [slowly])
        except FileFormatError:
            refusals += 1
    assert refusals > 50
