"""Beyond the paper: the library's own defaults on the same data, run to convergence."""

import time
from typing import NamedTuple

import numpy as np

from newtongp.inference.infer import infer
from newtongp.inference.steps.base import Step
from newtongp.inference.steps.constant import Constant
from newtongp.methods.presets import VI, Newton, PowerEP
from newtongp.methods.rule import Method
from newtongp.numerics.gaussian import Sites
from newtongp.results.result import Result
from newtongp.results.status import Status

from .cases import Case, Split, test_outputs, training_outputs

MAX_STEPS = 500
SCOUTING_STEPS = 100
"""Steps after which only the best of several starts goes on."""
PERTURBATION = 1e-9
"""Standard deviation of the sites' linear parts at the start, where there are several starts."""


class Default(NamedTuple):
    """A method with the step that `infer` gives it, or another."""

    name: str
    method: Method
    step: Step | None = None
    starts: int = 1
    """From how many starts. More than one help where the usual start has a symmetry that only rounding breaks."""
    only: tuple[str, ...] = ("motorcycle", "product", "gprn")
    """The case studies in which it is run."""


DEFAULTS = (
    Default("exact VI, backtracking", VI()),
    Default("exact VI, backtracking, best of 5 starts", VI(), starts=5, only=("gprn",)),
    Default("exact Newton, backtracking", Newton()),
    Default("exact power EP (α = 0.5), damped", PowerEP(0.5)),
    Default("exact power EP (α = 1), damped", PowerEP(1.0)),
    Default("exact power EP (α = 0.5), undamped", PowerEP(0.5), Constant(1.0)),
    Default("exact power EP (α = 1), undamped", PowerEP(1.0), Constant(1.0)),
)


def defaults_for(case: str) -> tuple[Default, ...]:
    """What is run in the case study of this name."""
    return tuple(default for default in DEFAULTS if case in default.only)


class Ending(NamedTuple):
    """How `infer` ended on one split."""

    energy: float
    nlpd: float
    rmse: float
    steps: int
    residual: float
    status: Status
    largest_rise: float
    """The largest rise of what the step controls, from one step to the next."""
    seconds: float
    """With compilation."""


def run(case: Case, default: Default, split: Split, max_steps: int = MAX_STEPS) -> Ending:
    """One method on one split, with the library's cubature and to its tolerance."""
    start = time.perf_counter()
    result, history = _best(case, default, split, max_steps)
    seconds = time.perf_counter() - start
    rows = np.any(split.test, axis=1)
    nlpd = -np.mean(result.log_density(split.x[rows], test_outputs(split)[rows]))
    rise = float(np.max(np.diff(history), initial=0.0)) if len(history) > 1 else 0.0
    return Ending(
        result.energy,
        float(nlpd),
        _rmse(case, split, result),
        len(history),
        result.residual,
        result.status,
        rise,
        seconds,
    )


def _best(case: Case, default: Default, split: Split, max_steps: int) -> tuple[Result, np.ndarray]:
    """The run, and what its step controls after every step; of several, the one that is lowest after some steps."""

    def attempt(steps: int, sites: Sites | None) -> Result:
        y = training_outputs(split)
        return infer(case.model, split.x, y, default.method, default.step, max_steps=steps, sites=sites, throw=False)

    if default.starts == 1:
        result = attempt(max_steps, None)
        return result, result.history.objective
    scouting = min(SCOUTING_STEPS, max_steps)
    starts = (_perturbed_start(case, split, seed) for seed in range(default.starts))
    found = min((attempt(scouting, start) for start in starts), key=lambda result: result.energy)
    result = attempt(max_steps - scouting, found.sites)
    return result, np.concatenate([found.history.objective, result.history.objective])


def _perturbed_start(case: Case, split: Split, seed: int) -> Sites:
    """The usual start of exact methods, no site at all, but for a perturbation."""
    rows, latents = split.x.shape[0], case.model.prior.num_latents
    linear = PERTURBATION * np.random.default_rng(seed).standard_normal((rows, latents))
    return Sites(linear, np.zeros((rows, latents, latents)))


def _rmse(case: Case, split: Split, result: Result) -> float:
    if split.truth is None:
        return float("nan")
    if case.truth_is == "latents":
        return float(np.sqrt(np.mean((result.marginals.mean - split.truth) ** 2)))
    error = result.predict(split.x).mean - split.truth
    return float(np.sqrt(np.mean(error[split.test] ** 2)))
