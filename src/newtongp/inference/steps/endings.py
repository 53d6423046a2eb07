"""The definitions of rounding, soundness, convergence and failure, for all rows at once and in batches."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ...results.status import Status
from .base import Outcome, Step, Verdict
from .constant import Constant

_ROUNDING = 1e-13


def rounding_of(objective: Float[Array, ""], magnitude: Float[Array, ""]) -> Float[Array, ""]:
    """Smaller changes of an objective are rounding; `magnitude` is the sum of the absolute values of its terms."""
    return _ROUNDING * (jnp.abs(objective) + magnitude + 1.0)


def is_sound(posterior: Any, cavities: Any, *numbers: Any) -> Bool[Array, ""]:
    """Whether a point is usable: its posterior and cavities are proper, and these numbers are finite."""
    finite = jnp.ones((), dtype=bool)
    for number in numbers:
        finite = finite & jnp.isfinite(number)
    return posterior & cavities & finite


def failure_of(posterior: Any, cavities: Any) -> Any:
    """The status to end with at a point that is not sound, by whether its posterior and cavities are proper."""
    failure = jnp.where(cavities, Status.NON_FINITE.value, Status.IMPROPER_CAVITY.value)
    return jnp.where(posterior, failure, Status.IMPROPER_POSTERIOR.value)


def has_converged(largest: Any, tol: Any) -> Any:
    """Whether no entry of any fixed-point residual is above the tolerance; with a tolerance of 0, never."""
    return (tol > 0.0) & (largest <= tol)


def status_after(
    step: Step,
    verdict: Verdict,
    first: Any,
    after: Outcome,
    largest: Any,
    failure: Any,
    tol: Any,
    may_stall: bool,
) -> tuple[Bool[Array, ""], Any]:
    """Whether a trial is accepted, and the status of inference after it.

    The `first` trial is the starting point itself, which is accepted if it is sound. `may_stall` is for methods without
    an objective that falls in every step, however slowly the residual follows.
    """
    accept = jnp.where(first, True, verdict.accept)
    converged = accept & has_converged(largest, tol)
    status = jnp.where(converged, Status.CONVERGED.value, Status.RUNNING.value)
    # A constant step cannot be shortened: it ends with the failure of its trial.
    ending = failure if isinstance(step, Constant) else Status.STEP_TOO_SMALL.value
    status = jnp.where(~accept & verdict.give_up, ending, status)
    if verdict.stalled is not None and may_stall:
        stalled = accept & ~first & ~converged & verdict.stalled
        status = jnp.where(stalled, Status.STALLED.value, status)
    return accept, jnp.where(first & ~after.sound, failure, status)
