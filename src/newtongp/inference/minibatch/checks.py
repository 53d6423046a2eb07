"""Checks that a method can be used in batches, made before anything is computed."""

from typing import Any

from ...methods.curvature import QuasiNewton
from ...methods.rule import Method
from ...methods.safeguard import Riemannian
from ...model import Model
from ...priors.markov import MarkovGP
from ...priors.sparse import SparseGP
from ...validation.arguments import whole
from ..steps.constant import Constant


def state_per_row(method: Method) -> str | None:
    """The name of the part of a method that keeps a state per row; None if there is none."""
    if isinstance(method.curvature, QuasiNewton):
        return "quasi-Newton"
    return "Riemannian" if isinstance(method.safeguard, Riemannian) else None


def check_batches(model: Model, method: Any, step: Any, batch_size: Any) -> Method:
    """The method; ValueError if it cannot be used in batches."""
    if not isinstance(model.prior, SparseGP) and not (isinstance(model.prior, MarkovGP) and model.prior.is_sparse):
        hint = " without them: give inducing=" if isinstance(model.prior, MarkovGP) else ""
        raise ValueError(
            "batch_size needs a prior that can be updated by a few rows, SparseGP or MarkovGP with inducing times, got "
            f"{type(model.prior).__name__}{hint}"
        )
    if batch_size is not None:
        whole(batch_size, "batch_size", such_as=1000)
    if method.curvature.moves_all_rows:
        raise ValueError("FirstOrderVI moves the sites of all rows at once: use VI() in batches")
    if step is not None and not isinstance(step, Constant):
        raise ValueError(
            f"in batches the step is Constant(rho), or left out for an adaptive one, got {step!r}: the energy of a few "
            "rows is too noisy for other steps"
        )
    if method.energy is None:
        raise ValueError(
            f"batches support only the built-in energies, and the target {type(method.target).__name__} has its own: "
            "leave batch_size out"
        )
    name = state_per_row(method)
    if name is not None and model.prior.storage == "tied":
        raise ValueError(
            f'{name} methods keep a state per row, which storage="tied" does not: use storage="full", or '
            "Exact() or GaussNewton() curvature without a Riemannian safeguard"
        )
    return method
