"""Variances that rounding has taken away, and the warning that says so."""

import inspect
import warnings
from typing import Any

import jax
import jax.core
import numpy as np


class RoundingWarning(UserWarning):
    """Some variances were lost to rounding: bounds on what rounding leaves of them are given in their place."""


def warn_of_lost(lost: Any) -> None:
    """Say of how many variances a bound was returned; nothing inside a user's own `jax.jit`."""
    if isinstance(lost, jax.core.Tracer) or not np.any(lost):
        return
    message = (
        f"{np.count_nonzero(lost)} of {np.size(lost)} predicted variances are smaller than their rounding errors, and "
        "bounds on those errors are given in their place: the noise is very small compared with the prior variance"
    )
    # The line that called newtongp, whatever wrappers there are in between.
    level = outside = 1
    frame = inspect.currentframe()
    while frame is not None:
        level, frame = level + 1, frame.f_back
        if frame is not None and frame.f_globals.get("__name__", "").startswith("newtongp."):
            outside = level + 1
    warnings.warn(message, RoundingWarning, stacklevel=outside)
