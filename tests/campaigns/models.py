"""Thousands of random models: every run must end with a name, a proper posterior and no NaN.

A *structure* is a prior, a kernel, a likelihood and a method; each is run on many data sets and hyperparameters, in
three numbers of rows, so that compiled programs are shared. One line of JSON per model is appended to the file of
results, and a run that was interrupted goes on where it stopped:

    python tests/campaigns/models.py --out models.jsonl                  # 150 structures, 5100 models
    python tests/campaigns/models.py --out models.jsonl --part 0/7       # a seventh of the structures
    python tests/campaigns/models.py --out models.jsonl --rows 7         # the smallest number of rows only
    python tests/campaigns/models.py --replay 12:40:3                    # structure 12, 40 rows, draw 3, in detail
    python tests/campaigns/models.py --out models.jsonl --report         # counts by ending, and every fault
"""

import argparse
import collections
import json
import os
import re
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any, NamedTuple

# Hundreds of programs, each run for seconds at most: compile quickly, not well, and keep none of them on disk. XLA ends
# the process at a flag it does not know, so ask in another process first.
_QUICK = "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"
if __name__ == "__main__" and "XLA_FLAGS" not in os.environ:
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    os.environ.setdefault("NEWTONGP_KEEP_PROGRAMS", "0")
    _probe = [sys.executable, "-c", "import jax; jax.jit(lambda x: x + 1)(1.0)"]
    if subprocess.run(_probe, env={**os.environ, "XLA_FLAGS": _QUICK}, capture_output=True).returncode == 0:
        os.environ["XLA_FLAGS"] = _QUICK

import jax
import numpy as np

import newtongp as ng
from newtongp.inference.compatibility import check_choices

STRUCTURES = 150
DRAWS = {7: 12, 40: 12, 300: 10}
"""Data sets and hyperparameters per structure, by number of rows."""
TOL = 1e-6
NEW_ROWS = 5

METHODS = {
    "vi": ng.VI(),
    "newton": ng.Newton(),
    "newton heuristic": ng.Newton(safeguard=ng.Heuristic()),
    "newton riemannian": ng.Newton(safeguard=ng.Riemannian()),
    "gauss-newton": ng.Newton(curvature=ng.GaussNewton()),
    "quasi-newton": ng.Newton(curvature=ng.QuasiNewton()),
    "taylor": ng.Taylor(),
    "vi heuristic": ng.VI(safeguard=ng.Heuristic()),
    "vi riemannian": ng.VI(safeguard=ng.Riemannian()),
    "vi gauss-newton": ng.VI(curvature=ng.GaussNewton()),
    "vi quasi-newton": ng.VI(curvature=ng.QuasiNewton()),
    "ep": ng.PowerEP(1.0),
    "power ep": ng.PowerEP(0.5),
    "power ep heuristic": ng.PowerEP(0.5, safeguard=ng.Heuristic()),
    "power ep riemannian": ng.PowerEP(0.5, safeguard=ng.Riemannian()),
    "power ep quasi-newton": ng.PowerEP(0.5, curvature=ng.QuasiNewton()),
    "pl": ng.PosteriorLinearisation(),
    "pl regression": ng.PosteriorLinearisation(slope="regression"),
    "pl quasi-newton": ng.PosteriorLinearisation(curvature=ng.QuasiNewton()),
    "pl2": ng.PosteriorLinearisation(order=2),
    "pl2 heuristic": ng.PosteriorLinearisation(order=2, safeguard=ng.Heuristic()),
    "pl2 riemannian": ng.PosteriorLinearisation(order=2, safeguard=ng.Riemannian()),
    "pl2 gauss-newton": ng.PosteriorLinearisation(order=2, curvature=ng.GaussNewton()),
    "pl2 quasi-newton": ng.PosteriorLinearisation(order=2, curvature=ng.QuasiNewton()),
    "first-order vi": ng.FirstOrderVI(),
}


class Scales(NamedTuple):
    """The units of one draw: of x, of f, and of y where y has the units of f."""

    x: float
    f: float
    y: float
    noise: float
    """The noise's standard deviation as a fraction of f's."""


# Likelihoods: how one is made, what it draws, and whether y has the units of f ------------------------------------


def _positive(f):
    return np.exp(np.clip(f, -8.0, 8.0))


def _probability(f):
    return 1.0 / (1.0 + np.exp(-np.clip(f, -30.0, 30.0)))


def _dirt(rng, count):
    return rng.standard_t(2.0, count)


LIKELIHOODS: dict[str, tuple[int, bool, Any, Any]] = {
    # name: (latents, whether y has the units of f, likelihood of the scales, draws of y given f (N, D))
    "gaussian": (
        1,
        True,
        lambda s: ng.likelihoods.Gaussian((s.noise * s.y) ** 2),
        lambda r, f, s: f[:, 0] + s.noise * s.y * r.normal(size=len(f)),
    ),
    "student": (
        1,
        True,
        lambda s: ng.likelihoods.StudentT(3.0, s.noise * s.y),
        lambda r, f, s: f[:, 0] + s.noise * s.y * _dirt(r, len(f)),
    ),
    "student light": (
        1,
        True,
        lambda s: ng.likelihoods.StudentT(20.0, s.noise * s.y),
        lambda r, f, s: f[:, 0] + s.noise * s.y * _dirt(r, len(f)),
    ),
    "bernoulli": (
        1,
        False,
        lambda s: ng.likelihoods.Bernoulli("logit"),
        lambda r, f, s: r.binomial(1, _probability(f[:, 0])),
    ),
    "bernoulli probit": (
        1,
        False,
        lambda s: ng.likelihoods.Bernoulli(),
        lambda r, f, s: r.binomial(1, _probability(f[:, 0])),
    ),
    "bernoulli lapse": (
        1,
        False,
        lambda s: ng.likelihoods.Bernoulli("logit", 0.02),
        lambda r, f, s: r.binomial(1, _probability(f[:, 0])),
    ),
    "binomial": (1, False, lambda s: ng.likelihoods.Binomial(9), lambda r, f, s: r.binomial(9, _probability(f[:, 0]))),
    "ordinal": (
        1,
        False,
        lambda s: ng.likelihoods.Ordinal([-1.0, 0.5]),
        lambda r, f, s: np.digitize(f[:, 0] + r.normal(size=len(f)), [-1.0, 0.5]),
    ),
    "poisson": (1, False, lambda s: ng.likelihoods.Poisson(), lambda r, f, s: r.poisson(_positive(f[:, 0]))),
    "poisson softplus": (
        1,
        False,
        lambda s: ng.likelihoods.Poisson("softplus"),
        lambda r, f, s: r.poisson(np.log1p(_positive(f[:, 0]))),
    ),
    "negative binomial": (
        1,
        False,
        lambda s: ng.likelihoods.NegativeBinomial(s.noise),
        lambda r, f, s: r.poisson(_positive(f[:, 0]) * r.gamma(2.0, 0.5, len(f))),
    ),
    "zero-inflated": (
        1,
        False,
        lambda s: ng.likelihoods.ZeroInflated(ng.likelihoods.Poisson(), 0.3),
        lambda r, f, s: r.binomial(1, 0.7, len(f)) * r.poisson(_positive(f[:, 0])),
    ),
    "gamma": (
        1,
        False,
        lambda s: ng.likelihoods.Gamma(1.0 / s.noise),
        lambda r, f, s: 1e-9 + r.gamma(1.0 / s.noise, _positive(f[:, 0])),
    ),
    "gamma softplus": (
        1,
        False,
        lambda s: ng.likelihoods.Gamma(2.0, "softplus"),
        lambda r, f, s: 1e-9 + r.gamma(2.0, np.log1p(_positive(f[:, 0]))),
    ),
    "exponential": (
        1,
        False,
        lambda s: ng.likelihoods.Exponential(),
        lambda r, f, s: 1e-9 + r.exponential(_positive(f[:, 0])),
    ),
    "beta": (
        1,
        False,
        lambda s: ng.likelihoods.Beta(1.0 / s.noise),
        lambda r, f, s: np.clip(
            r.beta(0.2 + 3.0 * _probability(f[:, 0]), 0.2 + 3.0 * _probability(-f[:, 0])), 1e-9, 1.0 - 1e-9
        ),
    ),
    "log-normal": (
        1,
        False,
        lambda s: ng.likelihoods.LogNormal(s.noise),
        lambda r, f, s: np.exp(np.clip(f[:, 0] + s.noise * r.normal(size=len(f)), -300.0, 300.0)),
    ),
    "softmax": (
        3,
        False,
        lambda s: ng.likelihoods.Softmax(3),
        lambda r, f, s: np.argmax(f + r.gumbel(size=f.shape), axis=1),
    ),
    "heteroscedastic": (
        2,
        True,
        lambda s: ng.likelihoods.HeteroscedasticGaussian(),
        lambda r, f, s: f[:, 0] + 0.3 * _dirt(r, len(f)),
    ),
    "heteroscedastic exp": (
        2,
        True,
        lambda s: ng.likelihoods.HeteroscedasticGaussian("exp"),
        lambda r, f, s: f[:, 0] + 0.3 * _dirt(r, len(f)),
    ),
    "heteroscedastic student": (
        2,
        True,
        lambda s: ng.likelihoods.HeteroscedasticStudentT(),
        lambda r, f, s: f[:, 0] + 0.3 * _dirt(r, len(f)),
    ),
    "product": (
        2,
        True,
        lambda s: ng.likelihoods.Product((s.noise * s.y) ** 2),
        lambda r, f, s: f[:, 0] * np.log1p(np.exp(np.clip(f[:, 1], -9.0, 9.0))) + s.noise * s.y * r.normal(size=len(f)),
    ),
    "product plain": (
        2,
        True,
        lambda s: ng.likelihoods.Product((s.noise * s.y) ** 2, None),
        lambda r, f, s: f[:, 0] * f[:, 1] + s.noise * s.y * r.normal(size=len(f)),
    ),
    "multivariate": (
        2,
        True,
        lambda s: ng.likelihoods.MultivariateGaussian((s.noise * s.y) ** 2 * np.array([[1.0, 0.3], [0.3, 0.5]])),
        lambda r, f, s: f + s.noise * s.y * r.normal(size=f.shape),
    ),
    "coregionalisation": (
        2,
        True,
        lambda s: ng.likelihoods.LinearCoregionalisation(
            np.array([[1.0, 0.2], [0.5, 1.0], [0.0, 1.0]]), (s.noise * s.y) ** 2 * np.eye(3)
        ),
        lambda r, f, s: f @ np.array([[1.0, 0.5, 0.0], [0.2, 1.0, 1.0]]) + s.noise * s.y * r.normal(size=(len(f), 3)),
    ),
    "network": (
        6,
        False,
        lambda s: ng.likelihoods.RegressionNetwork(2, 2, s.noise**2 * np.eye(2), 0.1),
        lambda r, f, s: (
            np.stack([f[:, 0] * f[:, 2] + f[:, 1] * f[:, 3], f[:, 0] * f[:, 4] + f[:, 1] * f[:, 5]], 1)
            + s.noise * r.normal(size=(len(f), 2))
        ),
    ),
}
_FIXED_UNITS = ("heteroscedastic", "heteroscedastic exp", "heteroscedastic student", "product", "product plain")
"""Of several latents, one sets a scale through its link: the units of y stay near those of f."""

# Kernels of one column, and of two --------------------------------------------------------------------------------

K = ng.kernels
KERNELS: dict[str, Any] = {
    "matern12": lambda s: K.Matern12(s.x, s.f**2),
    "matern32": lambda s: K.Matern32(s.x, s.f**2),
    "matern52": lambda s: K.Matern52(s.x, s.f**2),
    "matern72": lambda s: K.Matern72(s.x, s.f**2),
    "rbf": lambda s: K.RBF(s.x, s.f**2),
    "rational quadratic": lambda s: K.RationalQuadratic(s.x, s.f**2),
    "brownian": lambda s: K.Brownian(s.f**2 / s.x),
    "integrated brownian": lambda s: K.IntegratedBrownian(s.f**2 / s.x**3),
    "periodic": lambda s: K.Periodic(period=2.0 * s.x, variance=s.f**2),
    "cosine x matern": lambda s: K.Cosine(period=s.x) * K.Matern32(3.0 * s.x, s.f**2),
    "matern + constant": lambda s: K.Matern32(s.x, s.f**2) + K.Constant(s.f**2),
    "linear + matern": lambda s: K.Linear(s.f**2 / s.x**2) + K.Matern52(s.x, s.f**2),
    "matern + white": lambda s: K.Matern32(s.x, s.f**2) + K.White(0.1 * s.f**2),
}
_IN_TIME = [name for name in KERNELS if name not in ("rational quadratic", "matern + white")]
_FROM_ZERO = ("brownian", "integrated brownian")

PRIORS = ("GP", "MarkovGP", "SparseGP", "StateSpaceModel", "LinearModel")


class Structure(NamedTuple):
    """What is compiled once per number of rows."""

    prior: str
    kernel: str
    likelihood: str
    method: str
    columns: int

    def __str__(self) -> str:
        return f"{self.prior}, {self.kernel}, {self.likelihood}, {self.method}, {self.columns} column(s)"


def structures(count: int = STRUCTURES, seed: int = 0) -> list[Structure]:
    """Random structures that fit together, with every prior, kernel, likelihood and method among them."""
    rng = np.random.default_rng(seed)
    found: list[Structure] = []
    number = 0
    while len(found) < count:
        # Lists of different lengths, walked side by side: every entry of each of them occurs.
        prior = PRIORS[number % len(PRIORS)]
        likelihood = list(LIKELIHOODS)[number % len(LIKELIHOODS)]
        method = list(METHODS)[int(rng.integers(len(METHODS)))] if number % 3 else list(METHODS)[(number // 3) % 25]
        names = _IN_TIME if prior == "MarkovGP" else list(KERNELS)
        kernel = names[int(rng.integers(len(names)))] if prior in ("GP", "MarkovGP", "SparseGP") else "-"
        columns = 1
        if prior in ("GP", "SparseGP") and kernel not in _FROM_ZERO and "cosine" not in kernel and kernel != "periodic":
            columns = 1 + int(rng.integers(2))
        if prior == "LinearModel":
            columns = 3
        number += 1
        structure = Structure(prior, kernel, likelihood, method, columns)
        if structure not in found and _fits(structure):
            found.append(structure)
    return found


def _fits(structure: Structure) -> bool:
    if structure.likelihood == "network" and "quasi" in structure.method and structure.method.startswith("pl2"):
        return False  # 42 × 42 matrices for each row: minutes of compilation
    model = build_model(structure, Scales(1.0, 1.0, 1.0, 0.5))
    try:
        check_choices(model, METHODS[structure.method], None)
    except ValueError:
        return False
    return True


def build_model(structure: Structure, scales: Scales) -> ng.Model:
    """The model of this structure in these units."""
    latents, _, likelihood, _ = LIKELIHOODS[structure.likelihood]
    if structure.prior == "LinearModel":
        prior = ng.LinearModel(scales.f**2, num_latents=latents)
    elif structure.prior == "StateSpaceModel":
        each = np.eye(latents)
        prior = ng.StateSpaceModel(
            np.kron(each, [[1.0, 0.1], [0.0, 0.95]]),
            scales.f**2 * np.kron(each, np.diag([1e-3, 1e-2])),
            np.kron(each, [[1.0, 0.0]]),
            initial_covariance=scales.f**2 * np.eye(2 * latents),
        )
    else:
        kernel = KERNELS[structure.kernel](scales)
        kernel = kernel if latents == 1 else K.Independent([kernel] * latents)
        if structure.prior == "GP":
            prior = ng.GP(kernel)
        elif structure.prior == "MarkovGP":
            prior = ng.MarkovGP(kernel)
        else:
            prior = ng.SparseGP(kernel, inducing=5)
    return ng.Model(prior, likelihood(scales))


def draw(structure: Structure, rows: int, seed: int) -> tuple[ng.Model, np.ndarray, np.ndarray, dict[str, Any]]:
    """A model, its data, and the trouble that was made."""
    rng = np.random.default_rng([seed, rows])
    latents, has_units, _, draw_y = LIKELIHOODS[structure.likelihood]
    unit = 10.0 ** rng.uniform(-6.0, 6.0) if has_units and structure.likelihood not in _FIXED_UNITS else 1.0
    # The prior is about right in most draws, and off by orders of magnitude in the rest.
    spread = 10.0 ** rng.uniform(-1.0, 0.7) if rng.random() < 0.7 else 10.0 ** rng.uniform(-3.0, 3.0)
    scales = Scales(
        x=10.0 ** rng.uniform(-6.0, 6.0),
        f=unit * spread,
        y=unit,
        noise=10.0 ** (rng.uniform(-1.0, 0.5) if rng.random() < 0.7 else rng.uniform(-4.0, 2.0)),
    )
    trouble = {
        "duplicates": bool(rng.random() < 0.25),
        "gaps": bool(rng.random() < 0.3),
        "outliers": bool(rng.random() < 0.25),
        "constant": bool(rng.random() < 0.08),
        "all missing": bool(rng.random() < 0.04),
    }
    if structure.prior == "StateSpaceModel":
        # As many different steps in every draw, so that the chain has as many steps and rows, and programs are shared.
        inner = 1 + rng.choice(2 * rows - 1, rows - rows // 5 - 2, replace=False)
        different = np.concatenate([[0], inner, [2 * rows]])
        x = np.sort(np.concatenate([different, rng.choice(different, rows // 5)])).astype(float)[:, None]
        f = np.cumsum(rng.normal(size=(rows, latents)), axis=0) / np.sqrt(rows)
    elif structure.prior == "LinearModel":
        x = rng.normal(size=(rows, structure.columns))
        f = x @ rng.normal(size=(structure.columns, latents))
    else:
        width = 10.0 ** rng.uniform(-0.5, 2.0)
        x = (
            scales.x
            * width
            * rng.uniform(0.0 if structure.kernel in _FROM_ZERO else -1.0, 1.0, (rows, structure.columns))
        )
        f = np.stack([np.sin(x[:, 0] / (0.3 * scales.x * width) + k) for k in range(latents)], axis=1)
    if trouble["duplicates"] and structure.prior != "StateSpaceModel":
        x[1 : 1 + rows // 3] = x[0]
    y = np.asarray(draw_y(rng, unit * f, scales), dtype=float)
    integer = _support(structure).integer
    if trouble["constant"]:
        y[:] = y[0]
    if trouble["outliers"] and _support(structure).upper == np.inf and structure.likelihood != "binomial":
        rows_hit = rng.integers(0, rows, max(1, rows // 20))
        y[rows_hit] = y[rows_hit] * 1e3 + (1000.0 if integer else 0.0)
    if trouble["gaps"]:
        y[rng.random(y.shape) < 0.3] = np.nan
        if y.ndim == 1:
            y[rows // 2 : rows // 2 + rows // 5] = np.nan
    if trouble["all missing"]:
        y[:] = np.nan
    about = {**scales._asdict(), "trouble": [name for name, there in trouble.items() if there]}
    return build_model(structure, scales), x, y, about


def _support(structure: Structure):
    return LIKELIHOODS[structure.likelihood][2](Scales(1.0, 1.0, 1.0, 0.5)).support


# One model ------------------------------------------------------------------------------------------------------------

_NAMED = (ng.Status.CONVERGED, ng.Status.MAX_STEPS, ng.Status.STEP_TOO_SMALL)


def faults_of(structure: Structure, model: ng.Model, x: np.ndarray, y: np.ndarray) -> tuple[str, list[str]]:
    """How it ended, and everything that must not be."""
    method = METHODS[structure.method]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            result = ng.infer(model, x, y, method, max_steps=60, tol=TOL, throw=False)
        except Exception as error:
            return "raised", [f"infer raised {type(error).__name__}: {error}"]
        found = []
        ending = result.status.name
        if result.status not in (*_NAMED, ng.Status.NON_FINITE):
            found.append(f"ended with {ending}")
        if result.status is ng.Status.NON_FINITE and result.steps > 0:
            found.append("broke down after its start")
        numbers = {
            "energy": result.energy,
            "residual": result.residual,
            "history": result.history.energy,
            "means": result.marginals.mean,
            "covariances": result.marginals.covariance,
            "site linear": result.sites.linear,
            "site precisions": result.sites.precision,
        }
        if result.status is not ng.Status.NON_FINITE:
            found += [f"{name} not finite" for name, value in numbers.items() if not np.all(np.isfinite(value))]
            found += _covariance_faults("marginal", result.marginals.covariance)
        if result.status is ng.Status.CONVERGED:
            if not result.residual <= TOL:
                found.append(f"CONVERGED with residual {result.residual}")
            if isinstance(method, ng.Method) and method.is_stationary:
                again = ng.infer(model, x, y, method, max_steps=0, tol=TOL, sites=result.sites, throw=False).residual
                if not again <= 2.0 * TOL:
                    found.append(f"CONVERGED, but measured again the residual is {again}")
        if not found and result.status is not ng.Status.NON_FINITE:
            found += _prediction_faults(result, x)
        return ending, found


def _prediction_faults(result: ng.Result, x: np.ndarray) -> list[str]:
    new = x[np.linspace(0, len(x) - 1, NEW_ROWS).astype(int)]
    if not isinstance(result.model.prior, ng.StateSpaceModel):
        new = new + 1e-3 * np.ptp(x) * np.linspace(0.0, 1.0, NEW_ROWS)[:, None]
    try:
        prediction = result.predict(new)
        latent = prediction.latent
        undefined = prediction.likelihood.moments_problem() is not None
        moments = [] if undefined else [("mean", prediction.mean), ("variance", prediction.variance)]
    except Exception as error:
        return [f"predict raised {type(error).__name__}: {error}"]
    if not (np.all(np.isfinite(latent.mean)) and np.all(np.isfinite(latent.covariance))):
        return ["predicted latent not finite"]
    # Moments of y may be infinite, as under a wide prior with an exponential link, but not undefined.
    found = [f"predicted {name} of y is NaN" for name, value in moments if np.any(np.isnan(value))]
    return found + _covariance_faults("predicted", latent.covariance)


def _covariance_faults(name: str, covariances: np.ndarray) -> list[str]:
    """Negative variances, and covariances of rows that are not PSD to rounding."""
    variances = np.diagonal(covariances, axis1=1, axis2=2)
    if not np.all(variances >= 0.0):
        return [f"negative {name} variance: {np.min(variances):.2g}"]
    scales = np.sqrt(np.where(variances > 0.0, variances, 1.0))
    smallest = np.min(np.linalg.eigvalsh(covariances / scales[:, :, None] / scales[:, None, :]))
    return [f"{name} covariance not PSD: {smallest:.2g}"] if smallest < -1e-12 else []


# The whole of it ------------------------------------------------------------------------------------------------------


def run(out: Path, part: int, parts: int, count: int, rows: list[int]) -> None:
    """Every model that is not in the file yet."""
    done = {(line["structure"], line["rows"], line["draw"]) for line in _lines(out)}
    with out.open("a", encoding="utf-8") as file:
        for index, structure in enumerate(structures(count)):
            if index % parts != part:
                continue
            for size in rows:
                for number in range(DRAWS[size]):
                    if (index, size, number) in done:
                        continue
                    model, x, y, about = draw(structure, size, 1000 * index + number)
                    start = time.perf_counter()
                    ending, found = faults_of(structure, model, x, y)
                    line = {
                        "structure": index,
                        "rows": size,
                        "draw": number,
                        "what": str(structure),
                        "ending": ending,
                        "faults": found,
                        "seconds": round(time.perf_counter() - start, 2),
                        **about,
                    }
                    file.write(json.dumps(line) + "\n")
                    file.flush()
                    if found:
                        print(f"{index}:{size}:{number} {structure}: {'; '.join(found)}", flush=True)
            # Compiled programs take mappings, of which Linux allows a process only so many.
            jax.clear_caches()


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def report(path: Path) -> int:
    """Print counts by kind and every fault; the number of models with faults."""
    lines = _lines(path)
    print(f"{len(lines)} models of {len({line['structure'] for line in lines})} structures, ", end="")
    print(f"{sum(line['seconds'] for line in lines) / 60.0:.0f} minutes")
    endings = sorted({line["ending"] for line in lines})
    kinds = {"prior": 0, "kernel": 1, "likelihood": 2, "method": 3}
    values: dict[str, Any] = {name: lambda line, at=at: [line["what"].split(", ")[at]] for name, at in kinds.items()}
    values["rows"] = lambda line: [str(line["rows"])]
    values["trouble"] = lambda line: line["trouble"] or ["none"]
    print(f"{'':36s} models faults  " + "  ".join(endings))
    for name, of in {"": lambda line: ["all"], **values}.items():
        counts = collections.defaultdict(collections.Counter)
        for line in lines:
            for value in of(line):
                counts[value].update({"models": 1, "faults": bool(line["faults"]), line["ending"]: 1})
        for value, count in counts.items():
            numbers = "  ".join(f"{count[ending]:{len(ending)}d}" for ending in endings)
            print(f"{(name + ' ' + value).strip():36s} {count['models']:6d} {count['faults']:6d}  {numbers}")
    faulty = [line for line in lines if line["faults"]]
    found = collections.Counter(
        re.sub(r"-?\d[\d.e+-]*", "#", fault)[:90] for line in faulty for fault in line["faults"]
    )
    print(f"{len(faulty)} models with faults")
    for kind, count in found.most_common():
        print(f"  {count:5d} {kind}")
    for line in faulty:
        print(f"{line['structure']}:{line['rows']}:{line['draw']} {line['what']}: {'; '.join(line['faults'])}")
    return len(faulty)


def replay(name: str, count: int) -> None:
    """One model, in detail."""
    index, size, number = map(int, name.split(":"))
    structure = structures(count)[index]
    model, x, y, about = draw(structure, size, 1000 * index + number)
    print(structure, about, model, sep="\n")
    print(faults_of(structure, model, x, y))


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("models.jsonl"))
    parser.add_argument("--part", default="0/1", help="which part of the structures, such as 0/2")
    parser.add_argument("--structures", type=int, default=STRUCTURES)
    parser.add_argument("--rows", type=int, nargs="*", default=list(DRAWS))
    parser.add_argument("--replay", help="structure:rows:draw")
    parser.add_argument("--report", action="store_true")
    given = parser.parse_args()
    if given.replay:
        replay(given.replay, given.structures)
        return 0
    if not given.report:
        part, parts = map(int, given.part.split("/"))
        run(given.out, part, parts, given.structures, given.rows)
    return 1 if report(given.out) else 0


if __name__ == "__main__":
    sys.exit(main())
