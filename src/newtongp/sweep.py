"""One pass of a filter that linearises at its own predictions, and a smoother back: the classical smoothers.

`infer` expands every row's likelihood around the posterior marginal and iterates. A filter expands it around what the
rows before predict, once. Extended, unscented, Gauss–Hermite and assumed density filters differ in the method alone.
"""

from typing import Any

import jax
import jax.numpy as jnp

from . import kalman
from .choices import check_choices
from .gaussian import Gaussian, Sites
from .infer import Run
from .likelihoods.base import row_axes
from .methods.curvature import QuasiNewton
from .methods.presets import VI, FirstOrderVI
from .methods.rule import Method, evaluate, propose
from .methods.safeguard import Riemannian
from .model import Model
from .precision import in_double, to_host
from .priors.temporal import ChainWorkspace, TemporalPrior
from .problem import Problem, Setup
from .results import Result, Status
from .steps import Constant


@in_double
def filter_sweep(model: Model, x: Any, y: Any, method: Method | None = None) -> Result:
    """The posterior from one forward and one backward sweep over time, for a Markovian prior.

    With `Taylor()` it is the extended Kalman filter and smoother, with
    `PosteriorLinearisation(slope="regression", cubature=Unscented(3))` the unscented one, with `GaussHermite` nodes the
    Gauss–Hermite one, with `PowerEP(1.0)` assumed density filtering. Rows at the same time are taken one after the
    other. The result is of the same kind as that of `infer`, and `sites=result.sites` is a good start for it.

    >>> import newtongp as ng
    >>> model = ng.Model(ng.MarkovGP(ng.kernels.Matern32()), ng.likelihoods.Poisson())
    >>> swept = ng.filter_sweep(model, [0.0, 0.5, 1.0], [2, 3, 1], ng.Taylor())
    >>> swept.status.name, ng.infer(model, [0.0, 0.5, 1.0], [2, 3, 1], ng.Taylor(), sites=swept.sites).status.name
    ('SINGLE_PASS', 'CONVERGED')
    """
    method, step = check_choices(model, VI() if method is None else method, Constant(1.0))
    _check_method(method)
    if not isinstance(model.prior, TemporalPrior):
        raise ValueError(
            f"filter_sweep needs a prior in time, MarkovGP or StateSpaceModel, got {type(model.prior).__name__}"
        )
    setup = Setup(Model(model.prior.as_one_piece(), model.likelihood), x, y)
    sites = setup.order.rows(to_host(_sweep(setup.problem, setup.problem.workspace, method)))
    # From here on as in `infer`, with the prior as it was given.
    run = Run(Setup(model, x, y), method, step, sites, 0.0)
    result = run.result(run.finish(0))
    result.status = Status.SINGLE_PASS
    return result


def _check_method(method: Any) -> None:
    if isinstance(method, FirstOrderVI):
        raise ValueError("filter_sweep makes one update a row, and FirstOrderVI needs many: use VI() in place of it")
    if isinstance(method.curvature, QuasiNewton) or isinstance(method.safeguard, Riemannian):
        raise ValueError(
            "filter_sweep makes one update a row, and quasi-Newton and Riemannian methods start from an earlier one: "
            "use Exact() or GaussNewton() curvature without a Riemannian safeguard"
        )


@jax.jit
def _sweep(problem: Problem, workspace: ChainWorkspace, method: Method) -> Sites:
    """Every row's site, from what the rows before it predict."""
    chain, likelihood = workspace.chain, problem.likelihood
    form, latents = chain.form, workspace.mean.shape[1]
    axes = row_axes(likelihood)
    each = jax.tree.map(lambda leaf, axis: leaf if axis == 0 else None, likelihood, axes, is_leaf=_is_none)

    def body(state, step):
        step, own, y, observed, prior_mean = step
        row = jax.tree.map(lambda a, b: b if a is None else a, own, likelihood, is_leaf=_is_none)
        state, rows = kalman.predict_step(form, state, step)
        columns = [form.times(state[1], each) for each in rows]
        covariance = jnp.stack([jnp.stack([form.dot(each, column) for column in columns]) for each in rows])
        mean = prior_mean + jnp.stack([form.dot(each, state[0]) for each in rows])
        nothing = Sites(jnp.zeros(latents), jnp.zeros((latents, latents)))
        view, _ = evaluate(method, row, y, observed, Gaussian(mean, covariance), nothing)
        site, _ = propose(method, view, observed, nothing, None, jnp.ones(()))
        tilt = site.linear - site.precision @ prior_mean
        rotation, precision, linear = kalman.scalar_sites(site.precision[None], tilt[None])
        turned = None if rotation is None else tuple(tuple(rotation[0, :, k]) for k in range(latents))
        seen = step._replace(rotation=turned, precision=tuple(precision[0]), linear=tuple(linear[0]))
        state, _ = kalman.update_step(form, state, seen)
        return state, site

    steps = kalman.Step(chain.transition, chain.noise, chain.weights, None, None, None)
    start = form.split_vector(jnp.zeros(form.dimension)), form.split(chain.initial)
    rows = (steps, each, problem.y, problem.observed, workspace.mean)
    return jax.lax.scan(body, start, rows)[1]


def _is_none(leaf: Any) -> bool:
    return leaf is None
