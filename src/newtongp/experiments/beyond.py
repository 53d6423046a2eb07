"""Beyond the paper: the library's own defaults on the same data, run to convergence."""

import time
from typing import NamedTuple

import numpy as np

from ..infer import infer
from ..methods.presets import VI, Newton, PowerEP
from ..methods.rule import Method
from ..results import Result, Status
from ..steps import Constant, Step
from .cases import Case, Split, test_outputs, training_outputs

MAX_STEPS = 500


class Default(NamedTuple):
    """A method with the step that `infer` gives it, or another."""

    name: str
    method: Method
    step: Step | None = None


DEFAULTS = (
    Default("exact VI, backtracking", VI()),
    Default("exact Newton, backtracking", Newton()),
    Default("exact power EP (α = 0.5), damped", PowerEP(0.5)),
    Default("exact power EP (α = 1), damped", PowerEP(1.0)),
    Default("exact power EP (α = 0.5), undamped", PowerEP(0.5), Constant(1.0)),
    Default("exact power EP (α = 1), undamped", PowerEP(1.0), Constant(1.0)),
)


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
    result = infer(
        case.model,
        split.x,
        training_outputs(split),
        default.method,
        default.step,
        max_steps=max_steps,
        throw=False,
    )
    seconds = time.perf_counter() - start
    rows = np.any(split.test, axis=1)
    nlpd = -np.mean(result.log_density(split.x[rows], test_outputs(split)[rows]))
    history = result.history.objective
    rise = float(np.max(np.diff(history), initial=0.0)) if len(history) > 1 else 0.0
    return Ending(
        result.energy,
        float(nlpd),
        _rmse(case, split, result),
        result.steps,
        result.residual,
        result.status,
        rise,
        seconds,
    )


def _rmse(case: Case, split: Split, result: Result) -> float:
    if split.truth is None:
        return float("nan")
    if case.truth_is == "latents":
        return float(np.sqrt(np.mean((result.marginals.mean - split.truth) ** 2)))
    error = result.predict(split.x).mean - split.truth
    return float(np.sqrt(np.mean(error[split.test] ** 2)))
