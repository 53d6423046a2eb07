"""Checks that a method, a step and a likelihood are compatible, made before anything is computed."""

from typing import Any

import numpy as np

from ..likelihoods.base import Likelihood
from ..methods.presets import VI
from ..methods.rule import Method
from ..model import Model
from ..numerics.cubature import is_point
from .steps.backtracking import Backtracking
from .steps.base import Step
from .steps.constant import Constant
from .steps.damped import Damped
from .steps.double_loop import DoubleLoop


def default_step(method: Method) -> Step:
    """Backtracking if the method has an objective, Damped if it has only fixed points; Adam has its own step length."""
    if method.curvature.moves_all_rows:
        return Constant(1.0)
    return Damped() if method.objective is None else Backtracking()


def starts_from_sweep(method: Method, likelihood: Likelihood) -> bool:
    """Whether inference starts from a sweep over the rows, because the prior is a bad start.

    Under a wide prior, no linear function approximates a non-linear one. This affects all methods if y is a non-linear
    function of f plus Gaussian noise, and methods that linearise if log p(y | f) is not concave. Latents that enter
    linearly are unproblematic. Methods that invert site precisions start from a constant precision.
    """
    if method.initial_precision > 0.0:
        return False
    unproblematic = bool(likelihood.linear_latents) or likelihood.log_prob_degree in (0, 1, 2) or likelihood.log_concave
    linearised = likelihood.gaussian_form or method.target.needs_moments
    return linearised and not unproblematic and likelihood.moments_problem() is None


def check_choices(model: Any, method: Any, step: Any) -> tuple[Any, Step]:
    """The method and step to use; ValueError if they are incompatible with each other or with the model."""
    if not isinstance(model, Model):
        raise ValueError(f"model must be a Model(prior, likelihood), got {model!r}")
    method = VI() if method is None else method
    if not isinstance(method, Method):
        raise ValueError(f"method must be one such as VI(), Newton() or PowerEP(0.5), got {method!r}")
    step = default_step(method) if step is None else step
    if not isinstance(step, Step):
        raise ValueError(f"step must be Constant(rho), Backtracking(), Damped() or DoubleLoop(), got {step!r}")
    if method.curvature.moves_all_rows and not (isinstance(step, Constant) and np.all(step.rho == 1.0)):
        raise ValueError(f"FirstOrderVI has its own step length, learning_rate: leave step out, got {step!r}")
    if step.monitors == "objective" and method.objective is None:
        raise ValueError(
            "step=Backtracking() needs an objective that the method's fixed points minimise, which only exact VI, "
            "exact or Gauss-Newton Newton and targets that declare one have: use Damped() or Constant(rho) instead"
        )
    if isinstance(step, DoubleLoop) and not (method.target.name == "power_ep" and method.is_plain):
        raise ValueError(
            "step=DoubleLoop() is for power EP with exact curvature and no safeguard: use PowerEP(power) with it, or "
            "leave step out"
        )
    likelihood = model.likelihood
    moments = method.target.needs_moments or method.curvature.name == "gauss_newton"
    problem = likelihood.moments_problem() if moments else None
    if problem is not None:
        raise ValueError(f"this method needs the mean and covariance of y given f: {problem}")
    regresses = getattr(method.target, "slope", None) == "regression"
    rule = method.cubature if method.target.power > 0.0 or regresses else None
    if rule is not None and is_point(rule, likelihood.num_latents):
        raise ValueError(
            "this method integrates over the distribution of f, which a rule with a single node at its mean cannot do: "
            f"use GaussHermite(20) or Unscented(5) instead of cubature={rule!r}"
        )
    kind = getattr(method.curvature, "kind", "auto")
    if kind in ("full", "partial") and not likelihood.gaussian_form and not method.target.needs_moments:
        raise ValueError(
            f'GaussNewton(kind="{kind}") needs a likelihood that is Gaussian given f, which '
            f'{type(likelihood).__name__} is not: use kind="generalised" or "auto"'
        )
    return method, step
