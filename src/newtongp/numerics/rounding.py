"""The warning about variances that are lost to rounding."""

import inspect
import warnings
from typing import Any

import jax
import jax.core
import numpy as np


class RoundingWarning(UserWarning):
    """Some variances were lost to rounding: bounds on the rounding errors are returned instead."""


def warn_of_lost(lost: Any) -> None:
    """Warn of the number of variances that were replaced by a bound; silent inside a user's `jax.jit`."""
    if isinstance(lost, jax.core.Tracer) or not np.any(lost):
        return
    message = (
        f"{np.count_nonzero(lost)} of {np.size(lost)} predicted variances are smaller than their rounding errors, and "
        "bounds on those errors are returned instead: the noise is very small compared with the prior variance"
    )
    # Report the line that called newtongp, skipping wrappers.
    level = outside = 1
    frame = inspect.currentframe()
    while frame is not None:
        level, frame = level + 1, frame.f_back
        if frame is not None and frame.f_globals.get("__name__", "").startswith("newtongp."):
            outside = level + 1
    warnings.warn(message, RoundingWarning, stacklevel=outside)
