"""Hundreds of random fits: what is learned is inside its set, and CONVERGED means that the slope is small.

A *structure* is a prior, a kernel, a likelihood and a method. Each is fitted to many data sets with as many rows, so
that compiled programs are shared, and with random wishes: bounds, priors, ties. Slopes are checked by central
differences of the energies of `ng.infer`, which knows nothing of gradients. One line of JSON per fit is appended to the
file of results, and a run that was interrupted goes on where it stopped:

    python tests/campaigns/fits.py --out fits.jsonl                # 40 structures, 480 fits
    python tests/campaigns/fits.py --structures 0:5 --draws 40     # more data for the first five
    python tests/campaigns/fits.py --replay 12:3                   # structure 12, draw 3, in detail
    python tests/campaigns/fits.py --out fits.jsonl --report       # counts by ending, and every fault
"""

import argparse
import collections
import json
import time
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import newtongp as ng
from newtongp._runtime.double import in_double
from newtongp.fitting.learned import choose, slots_of, with_values
from newtongp.parameters.names import hyperparameters
from newtongp.parameters.priors import Gamma, LogNormal

K, L = ng.kernels, ng.likelihoods
ROWS = 15
DRAWS = 12
SEED = 20
TOL = 1e-5


class Ripple(K.Kernel):
    """A kernel of one's own, with a share that must stay between 0 and 1."""

    share: Any = ng.learned(ng.parameters.Between(0.0, 1.0), default=0.4)
    lengthscale: Any = ng.learned(ng.Positive(), unit="x", default=1.0)
    variance: Any = ng.learned(ng.Positive(), unit="f2", default=1.0)

    def evaluate(self, x1, x2):
        gap = (x1[0] - x2[0]) / self.lengthscale
        return self.variance * jnp.exp(-0.5 * gap**2) * (self.share + (1.0 - self.share) * jnp.cos(gap))


class Skewed(ng.Likelihood):
    """Gaussian noise with a known share of outliers above: a location, a positive and a bounded parameter."""

    shift: Any = ng.learned(default=0.0)
    scale: Any = ng.learned(ng.Positive(), unit="y", default=0.5)
    share: Any = ng.learned(ng.parameters.Between(0.0, 0.5), default=0.1)

    def log_prob(self, y, f):
        z = (y - f - self.shift) / self.scale
        near, far = -0.5 * z**2, -0.5 * ((z - 3.0) / 4.0) ** 2 - jnp.log(4.0)
        return jnp.logaddexp(jnp.log1p(-self.share) + near, jnp.log(self.share) + far) - jnp.log(2.5 * self.scale)


def _rate(f):
    return np.exp(np.clip(f, -5.0, 5.0))


def _odds(f):
    return 1.0 / (1.0 + np.exp(-f))


LIKELIHOODS: dict[str, tuple[int, Any, Any]] = {
    # name: (latents, the likelihood, draws of y given f (N, D))
    "gaussian": (1, L.Gaussian(0.3), lambda r, f: f[:, 0] + 0.4 * r.normal(size=len(f))),
    "student": (1, L.StudentT(4.0, 0.4), lambda r, f: f[:, 0] + 0.3 * r.standard_t(3.0, len(f))),
    "skewed": (1, Skewed(), lambda r, f: f[:, 0] + 0.3 * r.normal(size=len(f)) + 2.0 * r.binomial(1, 0.1, len(f))),
    "bernoulli": (1, L.Bernoulli("logit"), lambda r, f: r.binomial(1, _odds(2.0 * f[:, 0]))),
    "bernoulli lapse": (1, L.Bernoulli("logit", 0.02), lambda r, f: r.binomial(1, _odds(2.0 * f[:, 0]))),
    "poisson": (1, L.Poisson(), lambda r, f: r.poisson(_rate(1.0 + f[:, 0]))),
    "negative binomial": (
        1,
        L.NegativeBinomial(0.5),
        lambda r, f: r.poisson(_rate(1.0 + f[:, 0]) * r.gamma(2.0, 0.5, len(f))),
    ),
    "zero-inflated": (
        1,
        L.ZeroInflated(L.Poisson(), 0.3),
        lambda r, f: r.binomial(1, 0.7, len(f)) * r.poisson(_rate(1.0 + f[:, 0])),
    ),
    "gamma": (1, L.Gamma(2.0), lambda r, f: 1e-6 + r.gamma(2.0, _rate(f[:, 0]))),
    "log-normal": (1, L.LogNormal(0.4), lambda r, f: np.exp(f[:, 0] + 0.4 * r.normal(size=len(f)))),
    "ordinal": (
        1,
        L.Ordinal([-0.5, 0.5]),
        lambda r, f: np.digitize(f[:, 0] + 0.7 * r.normal(size=len(f)), [-0.5, 0.5]),
    ),
    "multivariate": (
        2,
        L.MultivariateGaussian([[0.3, 0.1], [0.1, 0.2]]),
        lambda r, f: f + 0.4 * r.normal(size=f.shape),
    ),
    "heteroscedastic": (
        2,
        L.HeteroscedasticGaussian(),
        lambda r, f: f[:, 0] + 0.5 * _rate(f[:, 1]) * r.normal(size=len(f)),
    ),
}
KERNELS: dict[str, Any] = {
    "matern32": K.Matern32(1.0, 1.0),
    "matern12 + constant": K.Matern12(1.0, 0.5) + K.Constant(0.5),
    "rbf": K.RBF(1.0, 1.0),
    "rational quadratic": K.RationalQuadratic(1.0, 1.0),
    "periodic x matern": K.Periodic(period=2.5) * K.Matern32(3.0),
    "matern52 + linear": K.Matern52(1.0, 0.5) + K.Linear(0.1),
    "ripple": Ripple(),
    "2 matern52": 2.0 * K.Matern52(1.0),
}
_IN_TIME = [name for name in KERNELS if name not in ("rational quadratic", "ripple", "rbf")]
METHODS = {
    "vi": ng.VI(),
    "newton": ng.Newton(),
    "power ep": ng.PowerEP(0.5),
    "pl": ng.PosteriorLinearisation(),
    "vi gauss-newton": ng.VI(curvature=ng.GaussNewton()),
}
PRIORS = ("GP", "MarkovGP", "SparseGP", "LinearModel")
STRUCTURES = 40


class Structure(NamedTuple):
    """What is compiled once."""

    prior: str
    kernel: str
    likelihood: str
    method: str

    def __str__(self) -> str:
        return f"{self.prior}, {self.kernel}, {self.likelihood}, {self.method}"


def structures(count: int = STRUCTURES) -> list[Structure]:
    """Random structures that fit together, with every prior, kernel, likelihood and method among them."""
    rng = np.random.default_rng(SEED)
    found: list[Structure] = []
    number = 0
    while len(found) < count:
        prior, likelihood = PRIORS[number % len(PRIORS)], list(LIKELIHOODS)[number % len(LIKELIHOODS)]
        names = _IN_TIME if prior == "MarkovGP" else list(KERNELS)
        kernel = "-" if prior == "LinearModel" else names[int(rng.integers(len(names)))]
        method = "vi" if number % 2 == 0 else list(METHODS)[int(rng.integers(1, len(METHODS)))]
        number += 1
        structure = Structure(prior, kernel, likelihood, method)
        if structure not in found and _fits(structure):
            found.append(structure)
    return found


def _fits(structure: Structure) -> bool:
    from newtongp.inference.compatibility import check_choices

    try:
        check_choices(build_model(structure), METHODS[structure.method], None)
    except ValueError:
        return False
    return True


def build_model(structure: Structure) -> ng.Model:
    """The model of a structure, where the search may start."""
    latents, likelihood, _ = LIKELIHOODS[structure.likelihood]
    if structure.prior == "LinearModel":
        return ng.Model(ng.LinearModel(1.0, num_latents=latents), likelihood)
    kernel = KERNELS[structure.kernel]
    kernel = kernel if latents == 1 else K.Independent([kernel, K.Matern32(2.0, 0.5)])
    mean = 0.1 if latents == 1 else ng.means.Independent([0.1] * latents)
    if structure.prior == "SparseGP":
        prior: Any = ng.SparseGP(kernel, np.linspace(0.0, 6.0, 5)[:, None], mean=mean)
    else:
        prior = (ng.GP if structure.prior == "GP" else ng.MarkovGP)(kernel, mean=mean)
    return ng.Model(prior, likelihood)


class Draw(NamedTuple):
    """Data, and what is said of some of the parameters."""

    x: np.ndarray
    y: np.ndarray
    wishes: dict[str, Any]


def draw(structure: Structure, index: int, number: int) -> Draw:
    """Data set `number` of structure `index`: in units of 0.1 to 10, some with a missing row or an outlier."""
    rng = np.random.default_rng([SEED, index, number])
    latents, _, draws = LIKELIHOODS[structure.likelihood]
    t = np.sort(rng.uniform(0.0, 6.0, ROWS))
    f = np.stack(
        [rng.uniform(0.3, 1.5) * np.sin(rng.uniform(0.5, 2.0) * t + rng.uniform(0, 6)) for _ in range(latents)], 1
    )
    y = np.asarray(draws(rng, f), dtype=float)
    unit = 1.0
    if structure.likelihood in ("gaussian", "student", "skewed", "multivariate"):
        unit = float(10.0 ** rng.uniform(-1.0, 1.0))
        y = unit * y
    if number % 4 == 1:
        y[rng.integers(ROWS)] = np.nan
    if number % 4 == 2 and structure.likelihood in ("gaussian", "student", "skewed"):
        y[rng.integers(ROWS)] += 10.0 * unit
    x = t[:, None]
    if structure.prior == "LinearModel":
        x = np.column_stack([np.ones(ROWS), np.cos(t), rng.normal(size=ROWS)])
    return Draw(x, y, _wishes(structure, rng))


def _wishes(structure: Structure, rng: np.random.Generator) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for each in choose(build_model(structure), None):
        name, value = each.slot.name, each.start
        if value.ndim > 0 or rng.random() > 0.4:
            continue
        if not each.slot.constraint.is_positive:
            spread = rng.uniform(0.1, 1.0)
            lower = float(value) - spread * (0.3 if float(value) > 0.0 else 1.0) * max(float(value), 0.3)
            found[name] = ng.Free(lower=lower, upper=float(value) + 0.5 * spread * max(float(value), 0.3))
        elif rng.random() < 0.4:
            found[name] = ng.Free(prior=LogNormal(float(value), 0.7) if rng.random() < 0.5 else Gamma(2.0, 1.0))
        else:
            found[name] = ng.Free(lower=float(value) * rng.uniform(0.05, 0.7), upper=float(value) * rng.uniform(1.5, 9))
    return found


# What must hold -----------------------------------------------------------------------------------


def faults_of(structure: Structure, drawn: Draw) -> tuple[str, list[str]]:
    """How a fit ended, and what is wrong with it."""
    model = build_model(structure)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ng.ConvergenceWarning)
        warnings.simplefilter("ignore", ng.FitWarning)
        result = ng.fit(
            model, drawn.x, drawn.y, METHODS[structure.method], parameters=drawn.wishes, standard_errors=False, tol=TOL
        )
        return result.status.name, [*outside(result, drawn.wishes), *steep(result, drawn.wishes)]


def outside(result: Any, wishes: dict[str, Any]) -> list[str]:
    """What was learned and is not in its set."""
    found = []
    if not np.isfinite(result.energy):
        found.append(f"energy {result.energy}")
    parts = {each.name: each for each in hyperparameters(result.model)}
    for name, value in result.learned.items():
        if not np.all(np.isfinite(parts[name].constraint.unconstrain(np.asarray(value)))):
            found.append(f"{name} is {np.asarray(value).tolist()}, outside of {parts[name].constraint}")
        wish = wishes.get(name)
        for bound, sign in ((getattr(wish, "lower", None), 1.0), (getattr(wish, "upper", None), -1.0)):
            if bound is not None and np.any(sign * (np.asarray(value) - bound) < 0.0):
                found.append(f"{name} is {np.asarray(value).tolist()}, beyond its bound {bound.tolist()}")
        if not np.array_equal(parts[name].value, value):
            found.append(
                f"{name} is {np.asarray(value).tolist()} in `learned` and {parts[name].value.tolist()} in the model"
            )
    return found


_STEP = 3e-4


def steep(result: Any, wishes: dict[str, Any]) -> list[str]:
    """Free numbers in which the energy, with the priors, has a slope although the search converged."""
    if result.status is not ng.Status.CONVERGED:
        return []
    slots = slots_of(result.model, list(result.learned), result.tied)
    unconstrained = np.concatenate([slot.constraint.unconstrain(result.learned[slot.name]) for slot in slots])
    middle, found, place = _total(result, slots, unconstrained), [], 0
    for slot in slots:
        for index in range(slot.size):
            slope, bend, step = 0.0, 0.0, _STEP
            # Where the energy bends so strongly that the step is many standard errors long, a shorter one.
            for step in (_STEP, _STEP / 30.0):
                move = np.zeros_like(unconstrained)
                move[place] = step
                up, down = (_total(result, slots, unconstrained + sign * move) for sign in (1.0, -1.0))
                slope, bend = (up - down) / (2.0 * step), (up - 2.0 * middle + down) / step**2
                if step * np.sqrt(max(bend, 0.0)) < 0.05:
                    break
            place += 1
            # Twice what the search promises (`tol` of 1e-5, times 100 where rounding is in the way), in the number
            # itself or in its standard errors; and the rounding of the energies.
            allowed = 2e2 * TOL * max(1.0, np.sqrt(max(bend, 0.0))) + 1e-10 * abs(middle) / step
            if abs(slope) > allowed and not _at_bound(slot, index, unconstrained[place - 1], wishes, slope):
                found.append(f"slope {slope:.2e} (curvature {bend:.2e}) in {slot.name}, free number {index}")
    return found


@in_double
def _total(result: Any, slots: Any, unconstrained: np.ndarray) -> float:
    """The energy of `ng.infer` with these hyperparameters, minus the log density of their priors."""
    values, begin = [], 0
    for slot in slots:
        values.append(
            np.asarray(slot.constraint.constrain(jnp.asarray(unconstrained[begin : begin + slot.size]), slot.shape))
        )
        begin += slot.size
    model = with_values(slots, result.model, values)
    data = result.data
    again = ng.infer(
        model, data.x, data.outputs, result.method, sites=result.sites, tol=1e-9, max_steps=300, throw=False
    )
    named = zip(slots, values, strict=True)
    densities = [jnp.sum(result.priors[slot.name](value)) for slot, value in named if slot.name in result.priors]
    return again.energy - float(sum(densities, 0.0))


def _at_bound(slot: Any, index: int, unconstrained: float, wishes: dict[str, Any], slope: float) -> bool:
    """Whether the slope is downhill to where a bound that was set does not let it go."""
    wish = wishes.get(slot.name)
    bound = getattr(wish, "lower" if slope > 0.0 else "upper", None)
    if bound is None:
        return False
    edge = np.broadcast_to(slot.constraint.unconstrain(np.asarray(bound)), (slot.size,))[index]
    return bool(abs(unconstrained - edge) < 2e-6)


# Running ------------------------------------------------------------------------------------------


def run(out: Path, first: int = 0, last: int = STRUCTURES, draws: int = DRAWS) -> None:
    """All fits that the file does not have yet, of structures from `first` up to `last`."""
    lines = out.read_text(encoding="utf-8").splitlines() if out.exists() else []
    done = {(entry["index"], entry["number"]) for entry in map(json.loads, lines)}
    for index, structure in enumerate(structures()):
        if not first <= index < last:
            continue
        missing = [number for number in range(draws) if (index, number) not in done]
        for number in missing:
            started = time.perf_counter()
            try:
                ending, found = faults_of(structure, draw(structure, index, number))
            except Exception as error:
                ending, found = "exception", [f"{type(error).__name__}: {error}"]
            entry = {"index": index, "number": number, "structure": str(structure), "ending": ending, "faults": found}
            entry["seconds"] = round(time.perf_counter() - started, 2)
            with open(out, "a", encoding="utf-8") as file:
                file.write(json.dumps(entry) + "\n")
        if missing:
            jax.clear_caches()


def report(out: Path) -> None:
    """Counts by ending, and every fault."""
    entries = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    print(len(entries), "fits;", dict(collections.Counter(entry["ending"] for entry in entries)))
    for entry in entries:
        for fault in entry["faults"]:
            print(f"{entry['index']}:{entry['number']} ({entry['structure']}): {fault}")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("fits.jsonl"))
    parser.add_argument("--report", action="store_true", help="only read the file")
    parser.add_argument("--replay", help="index:number of one fit, to see all of it")
    parser.add_argument("--structures", default=f"0:{STRUCTURES}", help="from:to, for a part of them")
    parser.add_argument("--draws", type=int, default=DRAWS, help="data sets per structure")
    options = parser.parse_args()
    if options.replay:
        index, number = map(int, options.replay.split(":"))
        structure = structures()[index]
        drawn = draw(structure, index, number)
        print(structure, drawn.wishes)
        model = build_model(structure)
        print(ng.fit(model, drawn.x, drawn.y, METHODS[structure.method], parameters=drawn.wishes).summary())
        print(faults_of(structure, drawn))
    elif options.report:
        report(options.out)
    else:
        run(options.out, *map(int, options.structures.split(":")), options.draws)
        report(options.out)


if __name__ == "__main__":
    main()
