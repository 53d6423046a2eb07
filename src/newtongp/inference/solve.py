"""Inference as a pure function: `solve` runs inside `jax.jit`, `jax.vmap` and `jax.grad`.

There are no checks of values, no warnings and no fallback starts; `infer` adds these. Derivatives are those of the
fixed point s = F(θ, s) of the sites, by the implicit function theorem: ds = (I − ∂F/∂s)⁻¹ ∂F/∂θ dθ. No step of the loop
is differentiated.
"""

from typing import Any

import equinox as eqx
import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from .._runtime.double import in_double
from ..inputs.data import check_row_parameters, missing_value, read_data
from ..likelihoods.partial import PartlyObserved, partly_problem
from ..likelihoods.weighted import Weighted, unweighted, with_weight
from ..methods.rule import Method
from ..model import Model, without_weights
from ..numerics.gaussian import Gaussian, Sites
from ..numerics.kalman import loops
from ..numerics.linalg import solve_by_products
from ..results.status import Status
from ..validation.functions import functions_in
from .compatibility import check_choices, starts_from_sweep
from .double_loop import descend
from .loop import begin_loop, expand_rows, propose_rows, run_loop, total_energy
from .problem import BoundModel, Order, positions_of
from .starts import swept
from .steps import DoubleLoop, Step
from .steps.double_loop import CLOSE


class Prepared(eqx.Module):
    """Data in the layout of a prior, as `prepare` returns them: a PyTree, which can be stacked for `jax.vmap`."""

    inputs: Any
    """Inputs in the order of positions, in the prior's own form."""
    y: Float[Array, "N P"]
    """Outputs of the rows, with NaN for missing ones."""
    rows: Any = None
    """The row at each position, −1 where there is none; None if positions are rows."""
    position: Any = None
    """The position of each row."""


class Solution(eqx.Module):
    """What `solve` returns: a PyTree with one entry per row, or one number.

    `energy` and `marginals` have derivatives in the hyperparameters and in y. These are NaN unless the status is
    CONVERGED, because only a fixed point has them.
    """

    sites: Sites
    marginals: Gaussian
    """Posterior marginals of f: `mean` (N, D) and `covariance` (N, D, D)."""
    energy: Float[Array, "..."]
    """The method's approximation of −log p(y)."""
    residual: Float[Array, "..."]
    """The largest entry of any row's fixed-point residual. It has no derivative."""
    steps: Int[Array, "..."]
    status: Int[Array, "..."]
    """The value of a `Status`: `Status(int(solution.status))` has its name and its sentence."""

    @property
    def converged(self) -> Bool[Array, "..."]:
        """Whether the fixed point was reached."""
        return self.status == Status.CONVERGED.value


@in_double
def prepare(model: Model, x: Any, y: Any) -> Prepared:
    """x and y, read and checked as in `infer`, in the layout of the model's prior.

    Call it outside of `jax.jit`, once per data set. `solve` may use other hyperparameters, but choices that the prior
    makes from the data, such as inducing inputs, stay the same.

    >>> import newtongp as ng
    >>> model = ng.Model(ng.MarkovGP(ng.kernels.Matern32()), ng.likelihoods.Poisson())
    >>> ng.prepare(model, [2.0, 0.0, 1.0], [3, 1, 0]).y.shape
    (3, 1)
    """
    # Weights stay with the model, of which `solve` may be given another one.
    data = read_data(x, y, without_weights(model))
    check_row_parameters(model.likelihood, data.x.shape[0])
    return _laid_out(model, data.x, data.outputs)


def solve(
    model: Model,
    data: Any,
    method: Method | None = None,
    step: Step | None = None,
    *,
    max_steps: int = 100,
    tol: float = 1e-6,
    sites: Sites | None = None,
) -> Solution:
    """The Gaussian posterior of the model given data, as a pure function of arrays.

    `data` is returned by `prepare`, or a pair of arrays (x, y). NaN in y is missing. y may be traced, and so may the
    model's hyperparameters; x may be traced for priors that use it as it is (`GP`, `LinearModel`, `SparseGP` with given
    inducing inputs). Double precision has to be on, as in `with jax.enable_x64(True):`.

    It takes the same steps as `infer` from the same start, but does not try another start if that one fails, and
    neither warns nor raises: `status` says how it ended. Derivatives of `energy`, `marginals` and `sites` in the
    hyperparameters, and in y where y is continuous, are those of the fixed point.

    >>> import jax
    >>> import newtongp as ng
    >>> def energy(lengthscale):
    ...     model = ng.Model(ng.GP(ng.kernels.RBF(lengthscale)), ng.likelihoods.Poisson())
    ...     return ng.solve(model, ([0.0, 1.0, 2.0], [1.0, 0.0, 3.0])).energy
    >>> with jax.enable_x64(True):
    ...     slope = jax.jit(jax.grad(energy))(1.0)
    >>> round(float(slope), 4)
    0.389
    """
    _require_double()
    _check_closures(model)
    method, step = check_choices(model, method, step)
    prepared = data if isinstance(data, Prepared) else _from_arrays(model, data)
    bound, order = _bind(model, prepared)
    start = None if sites is None else order.sites(jax.tree.map(jnp.asarray, sites))
    solution = _compiled(bound, method, step, start, jnp.asarray(max_steps), jnp.asarray(tol))
    return Solution(
        order.rows(solution.sites),
        order.rows(solution.marginals),
        solution.energy,
        jax.lax.stop_gradient(solution.residual),
        solution.steps,
        solution.status,
    )


def _require_double() -> None:
    if jnp.zeros(()).dtype != jnp.float64:
        raise ValueError(
            "solve needs double precision, and JAX is in single precision here: call it within "
            '`with jax.enable_x64(True):`, or write jax.config.update("jax_enable_x64", True) when your program starts'
        )


def _check_closures(model: Model) -> None:
    """Raise ValueError if a function in the model closes over traced values, which derivatives would not reach."""
    for function in functions_in(model):
        cells = function.__closure__ or ()
        if any(isinstance(part, jax.core.Tracer) for cell in cells for part in jax.tree.leaves(cell.cell_contents)):
            raise ValueError(
                f"{function.__qualname__} in the model closes over values that JAX traces, and their derivatives would "
                "be lost: write a class, such as a subclass of newtongp.means.Mean, with these values as fields"
            )


# Data -----------------------------------------------------------------------------------------------------------------


def _laid_out(model: Model, x: Any, y: Any) -> Prepared:
    layout = model.prior.layout(x)
    if layout.rows is None:
        return Prepared(layout.inputs, y)
    return Prepared(layout.inputs, y, layout.rows, positions_of(layout.rows, x.shape[0]))


def _from_arrays(model: Model, data: Any) -> Prepared:
    """A pair of arrays in the layout of the prior; shapes are checked, values are not."""
    if not (isinstance(data, (tuple, list)) and len(data) == 2):
        raise ValueError(
            f"data must be a pair (x, y) of arrays, or the return value of prepare, got {type(data).__name__}"
        )
    x, y = (part if isinstance(part, jax.core.Tracer) else np.asarray(part, dtype=float) for part in data)
    x = x[:, None] if x.ndim == 1 else x
    y = y[:, None] if y.ndim == 1 else y
    outputs = model.likelihood.num_outputs
    if x.ndim != 2 or y.shape != (x.shape[0], outputs):
        raise ValueError(
            f"x must have shape (N, P) and y shape (N, {outputs}), got {x.shape} and {y.shape}: give one row per datum"
        )
    try:
        return _laid_out(model, x, y)
    except (jax.errors.TracerArrayConversionError, jax.errors.ConcretizationTypeError):
        raise ValueError(
            f"x cannot be traced for {type(model.prior).__name__}, whose layout depends on its values: call "
            "prepare(model, x, y) outside of jax.jit, and pass its return value to solve"
        ) from None


def _bind(model: Model, prepared: Prepared) -> tuple[BoundModel, Order]:
    order = Order(prepared.rows, prepared.position)
    y = jnp.asarray(prepared.y, dtype=float)
    present = ~jnp.isnan(y)
    likelihood = unweighted(model.likelihood)
    observed = jnp.any(present, axis=1)
    partial = likelihood.num_outputs > 1 and not isinstance(prepared.y, np.ndarray)
    if isinstance(prepared.y, np.ndarray):
        some = ~np.isnan(prepared.y)
        partial = bool(np.any(np.any(some, axis=1) & ~np.all(some, axis=1)))
    example = missing_value(likelihood)
    if partial and partly_problem(likelihood) is None:
        likelihood = PartlyObserved(likelihood, present)
        y = jnp.where(present, y, jnp.where(observed[:, None], 0.0, example))
    else:
        # If missing outputs cannot be marginalised, the row stays NaN, and so does the result.
        y = jnp.where(observed[:, None], y, example)
    if isinstance(model.likelihood, Weighted):
        weights = jnp.broadcast_to(jnp.asarray(model.likelihood.weights), observed.shape)
        likelihood, observed = with_weight(likelihood, weights), observed & (weights > 0.0)
    y, observed = order.positions(y), order.positions(observed, fill=False)
    return BoundModel(model.prior, order.likelihood(likelihood), prepared.inputs, y, observed), order


# The fixed point and its derivatives ----------------------------------------------------------------------------------


class _Found(eqx.Module):
    """A solution in the order of positions."""

    sites: Sites
    marginals: Gaussian
    energy: Any
    residual: Any
    steps: Any
    status: Any


@eqx.filter_custom_jvp
def _fixed_point(bound: BoundModel, method: Method, step: Step, start: Any, max_steps: Any, tol: Any) -> _Found:
    problem = bound.problem()
    rows, latents = problem.workspace.mean.shape
    sites = Sites.constant(rows, latents, method.initial_precision) if start is None else start
    if start is None and starts_from_sweep(method, problem.likelihood):
        sites = swept(problem, _rows_of(bound.inputs))
    if isinstance(step, DoubleLoop):
        sites, _ = descend(problem, method, sites, jnp.maximum(tol, CLOSE), step.most)
    loop, _ = run_loop(problem, method, step, begin_loop(problem, method, step, sites, 1), max_steps, tol)
    point = loop.point
    status = jnp.where(loop.status == Status.RUNNING.value, Status.MAX_STEPS.value, loop.status)
    marginals = problem.workspace.marginals_of_f(point.marginals)
    return _Found(point.sites, marginals, point.energy, point.largest, jnp.maximum(loop.steps, 0), status)


def _rows_of(inputs: Any) -> Any:
    """x in the order of the data; None where a prior keeps it in an order or form of its own."""
    x = getattr(inputs, "x", inputs)
    return x if isinstance(x, (np.ndarray, jax.Array)) else None


@_fixed_point.def_jvp
def _derivative(primals, tangents):
    bound, method, *_ = primals
    moved = tangents[0]
    found = _fixed_point(*primals)
    _check_differentiable(method)
    numbers, rest = eqx.partition(bound, _is_real)
    numbers = jax.tree.map(jnp.asarray, numbers)
    undefined = jnp.zeros(())
    if bound.likelihood.support.integer and moved.y is not None:
        # There is no derivative in a discrete y, even if its density is a function of real numbers.
        undefined = jnp.nan * jnp.sum(moved.y)
        moved = eqx.tree_at(lambda bound: bound.y, moved, None)
    moved = jax.tree.map(_or_zero, numbers, moved, is_leaf=lambda leaf: leaf is None)

    def outcome(numbers: Any, sites: Sites) -> tuple[Sites, Gaussian, Any]:
        """The fixed-point map, the marginals and the energy at these sites."""
        problem = eqx.combine(numbers, rest).problem()
        conditioned, expansions, row_numbers = expand_rows(problem, method, sites)
        proposal, _ = propose_rows(problem, method, expansions, sites, None, jnp.zeros(()))
        marginals = problem.workspace.marginals_of_f(conditioned.marginals)
        return proposal, marginals, total_energy(conditioned, row_numbers)

    with loops.unmarked():
        _, along = jax.linearize(outcome, numbers, found.sites)
    still = jax.tree.map(jnp.zeros_like, found.sites)
    held = jax.tree.map(jnp.zeros_like, numbers)

    def minus_carried(sites: Sites) -> Sites:
        return jax.tree.map(jnp.subtract, sites, along(held, sites)[0])

    sites = jax.lax.custom_linear_solve(
        minus_carried, along(moved, still)[0], _solve_or_nan, transpose_solve=_solve_or_nan
    )
    _, marginals, energy = along(moved, sites)
    # Only a fixed point has these derivatives: elsewhere they would be silently wrong.
    mark = jnp.where(found.status == Status.CONVERGED.value, 1.0, jnp.nan)
    sites, marginals, energy = jax.tree.map(lambda leaf: mark * leaf + undefined, (sites, marginals, energy))
    return found, _Found(sites, marginals, energy, jnp.zeros_like(found.residual), None, None)


def _is_real(leaf: Any) -> bool:
    """Whether a leaf can have a tangent, as plain floats of users' classes can."""
    return isinstance(leaf, (float, np.ndarray, np.floating, jax.Array)) and jnp.issubdtype(
        jnp.result_type(leaf), jnp.floating
    )


def _or_zero(leaf: Any, tangent: Any) -> Any:
    return tangent if leaf is None or tangent is not None else jnp.zeros_like(leaf)


@eqx.filter_jit
def _compiled(*arguments: Any) -> _Found:
    """`_fixed_point` as one program, with its derivatives, even if the user has not called `jax.jit`."""
    return _fixed_point(*arguments)


_ITERATIONS = 60
_SOLVED = 1e-6
"""The largest relative residual of the linear equations for derivatives; above it, they are NaN."""


def _solve_or_nan(apply: Any, right: Any) -> Any:
    solution = solve_by_products(apply, right, _ITERATIONS)
    gap = jax.tree.map(jnp.subtract, apply(solution), right)
    solved = _norm(gap) <= _SOLVED * _norm(right) + 1e-12
    return jax.tree.map(lambda leaf: jnp.where(solved, leaf, jnp.nan), solution)


def _norm(tree: Any) -> Any:
    return jnp.sqrt(sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(tree)))


def _check_differentiable(method: Method) -> None:
    if method.curvature.remembers and not method.curvature.moves_all_rows:
        raise ValueError(
            "the sites of a quasi-Newton method depend on the steps that led to them, and have no derivatives: use "
            "Exact() or GaussNewton() curvature"
        )
