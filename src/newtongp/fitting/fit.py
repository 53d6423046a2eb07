"""`fit`: hyperparameters that minimise the energy at the fixed point of inference.

One evaluation (`evaluator.py`) runs inference to convergence from the last sites, and computes the gradient of its
energy (`objective.py`; `conjugate.py` with Gaussian noise, where nothing iterates). L-BFGS (`search.py`,
`descent.py`) minimises it over unconstrained numbers (`space.py`), starting from guesses that are made from the data.
"""

import contextlib
import functools
import time
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from .._runtime import spare_time
from .._runtime.double import in_double
from ..inference.compatibility import check_choices
from ..inference.infer import Run
from ..inference.loop import MOST_STEPS, work_of
from ..inference.own_sizes import in_own_size
from ..inference.prior_check import check_prior
from ..inference.problem import Setup
from ..inference.quadrature import start_compiling_estimates
from ..inference.steps.double_loop import DoubleLoop
from ..inputs import memory
from ..inputs.data import read_inputs, with_weights
from ..inputs.tables import bind
from ..model import Model, from_formulas
from ..priors.by_name import for_columns
from ..results.fit_result import FitResult
from ..results.status import Status
from ..validation.arguments import check_key, file_name, flag, tolerance, whole
from . import objective, profiles
from .evaluator import FINEST, Evaluator, RecordFile, inner_tolerance, start_compiling
from .initial_values import Scales, guessed_model
from .learned import with_values
from .search import lowest_of, release_weak_priors, search, starts_of
from .space import Space, report_failure
from .standard_errors import curvature, errors_and_spread

_GRADIENTS = 4.0
"""The memory that a gradient takes, as a multiple of that of inference."""
_SOON = 2**23
"""The number of array elements up to which standard errors are computed when they are first used: in tenths of seconds.

Nobody should have to wait for them after a search that took long.
"""


@in_double
def fit(
    model: Any,
    x: Any,
    y: Any = None,
    method: Any = None,
    step: Any = None,
    *,
    parameters: Mapping[str, Any] | None = None,
    max_steps: int = 100,
    tol: float = 1e-5,
    restarts: int = 0,
    key: Any = 0,
    weak_priors: bool | str = True,
    standard_errors: bool = True,
    inference_steps: int = 200,
    progress: bool = False,
    checkpoint: Any = None,
    throw: bool = True,
    batch_size: int | None = None,
    learning_rate: float = 0.05,
    check_memory: bool = True,
    effects: Any = None,
    weights: Any = None,
) -> FitResult:
    """Learn the hyperparameters of the model from data, and infer the posterior with them.

    All hyperparameters that the kernel, mean and likelihood declare (see `newtongp.learned`) are learned, unless
    `parameters`, a mapping from names (see `newtongp.parameters`) to `Fixed()`, `Free(lower, upper, prior, start)` or
    `Tied(name)`, specifies otherwise; a `FitWarning` names numbers that are not declared. L-BFGS with exact gradients
    minimises the method's own energy, minus the log density of priors on parameters if there are any (a MAP estimate).
    It stops when all derivatives, in the logarithms of positive parameters and in other parameters divided by their
    units, are below `tol`, or when energies no longer differ by more than rounding. The search starts from the model's
    own values or from guesses made from the data, whichever have the lower energy, and again from `restarts` random
    points, which depend on `key`.

    `weak_priors` keep parameters that the data do not determine in a plausible range, and do not move those that the
    data determine: see `newtongp.parameters.Plausible`. With "keep", they are kept in any case, which saves the
    evaluations that find out. A problem that would not fit in memory raises MemoryError
    before it starts, unless `check_memory=False`. Ctrl-C ends the search after the current evaluation and returns the
    best result so far (`Status.INTERRUPTED`). An evaluation takes seconds for 10⁶ rows of a `MarkovGP`, and minutes for
    4000 rows of a `GP`. `checkpoint` is a file to save the progress in and to resume from. The result is that of
    `infer` with the learned hyperparameters in `result.model`, and has a `summary()`.

    A formula may be given instead of a model, followed by the table and a likelihood:
    `fit("seizures ~ treatment + (1 | patient)", table, "poisson")`. Its fixed effects have the prior `effects`, "wide"
    by default (see `newtongp.terms.from_formula`). `weights` of rows are those of `infer`.

    With `batch_size`, a `SparseGP`, or a `MarkovGP` with inducing times, is learned from that many rows at a time, by
    Adam with `learning_rate` in the logarithms of positive parameters. x and y may then be anything that `infer`
    accepts in batches, `key` determines the order of the rows, and `max_steps` counts passes over the data. Learning
    ends when the energy no longer falls by more than its own noise.

    >>> import numpy as np
    >>> import newtongp as ng
    >>> x = np.linspace(0.0, 10.0, 40)
    >>> y = np.random.default_rng(0).poisson(np.exp(1.0 + np.sin(x)))
    >>> result = ng.fit(ng.Model(ng.MarkovGP("matern52"), "poisson"), x, y)
    >>> result.status.name, bool(0.5 < result.parameters["kernel.lengthscale"] < 10.0)
    ('CONVERGED', True)
    """
    model, y = from_formulas(model, y, effects)
    model = with_weights(model, x, weights)
    whole(max_steps, "max_steps", 0, such_as=100)
    whole(restarts, "restarts", 0)
    whole(inference_steps, "inference_steps", 1, MOST_STEPS, such_as=200)
    tol = tolerance(tol, strict=True)
    check_key(key)
    flags: dict[str, Any] = {"standard_errors": standard_errors, "progress": progress, "throw": throw}
    flags["weak_priors"] = weak_priors if weak_priors != "keep" else True
    for name, value in flags.items():
        flag(value, name)
    checkpoint = None if checkpoint is None else file_name(checkpoint, "checkpoint", "fit.checkpoint")
    if batch_size is not None or getattr(getattr(model, "prior", None), "storage", "full") == "tied":
        from .minibatch import fit_in_batches

        return fit_in_batches(
            model,
            x,
            y,
            method,
            step,
            batch_size=batch_size,
            learning_rate=learning_rate,
            parameters=parameters,
            max_steps=int(max_steps),
            tol=tol,
            restarts=int(restarts),
            key=key,
            weak_priors=bool(weak_priors),
            inference_steps=int(inference_steps),
            progress=progress,
            checkpoint=checkpoint,
            throw=throw,
        )
    method, step = check_choices(model, method, step)
    if isinstance(step, DoubleLoop):
        raise ValueError("step=DoubleLoop() is for infer: leave step out of fit")
    with memory.checked(check_memory):
        setup = _set_up(model, x, y)
        memory.require_nodes(method.cubature, setup.data.x.shape[0], model.prior.num_latents)
    workspace, posterior, inner = None, None, inner_tolerance(tol, method, setup.model.likelihood)
    if checkpoint is None:  # whose record may need no evaluation
        workspace, posterior = start_compiling(setup, parameters, method, step, int(inference_steps), inner)
    space = Space(setup.model, Scales(setup.model, setup.data), parameters, bool(weak_priors))
    record_file = None
    if checkpoint is not None:
        record_file = RecordFile(checkpoint, setup, (method, step, space.priors), space, int(inference_steps))
    started = time.perf_counter()
    choices = method, step, space, int(inference_steps), inner, record_file
    with _progress(progress) as report_progress:
        use = None
        if record_file is None:  # it has the sites of all positions
            setup, use = in_own_size(
                setup,
                (method, step),
                ("fit", space.slots),
                work_of(setup, method),
                lambda own: Evaluator(own, *choices, report_progress).prepare(),
            )
        evaluator = Evaluator(setup, *choices, report_progress, use)
        # While evaluations are compiled:
        if posterior is not None:
            posterior.start_compiling(setup.data.x.shape[1])
        if workspace is not None and objective.evaluate.is_pending():
            start_compiling_estimates(setup, method, workspace)
        spare_time.use(objective.evaluate.is_pending)
        searches, trace, interrupted, hessian = [], [], False, None
        try:
            for start, curvature_there in starts_of(evaluator, int(restarts), key):
                searches.append(search(evaluator, start, int(max_steps), tol, trace, curvature_there))
            if searches and weak_priors == "keep":
                space.note_undetermined(space.pull(lowest_of(searches).unconstrained)[1] != 0.0)
            elif searches:
                lowest, hessian = release_weak_priors(evaluator, lowest_of(searches), int(max_steps), tol, trace)
                searches.append(lowest)
            if not standard_errors:
                hessian = None
            elif hessian is None and searches:
                find = functools.partial(curvature, evaluator, lowest_of(searches).unconstrained, space.units)
                # A record has all evaluations, and a bar shows them. Where no slope was seen, they may show one.
                later = 2 * space.size * evaluator.work <= _SOON and record_file is None and not progress
                hessian = find if later and not space.without_influence(evaluator.slopes) else find()
        except KeyboardInterrupt:
            interrupted = True
    if record_file is not None and len(evaluator.record) >= len(evaluator.replay):
        record_file.write(evaluator.record, evaluator.sites, now=True)
    find_profiles = None
    if standard_errors and not interrupted and record_file is None:
        find_profiles = functools.partial(profiles.of_loose_values, evaluator)
    return _finish(evaluator, searches, trace, interrupted, hessian, find_profiles, started, throw)


def _set_up(model: Model, x: Any, y: Any) -> Setup:
    """The model bound to its data, with one lengthscale per column if unspecified, and with chosen inducing inputs."""
    model, x, y = bind(model, x, y)
    if getattr(model.prior, "by_name", False):
        model = Model(for_columns(model.prior, read_inputs(x, model).shape[1]), model.likelihood)
    setup = Setup(model, x, y)
    memory.require_rows(model.prior, setup.data.x, times=_GRADIENTS)
    if model.prior.over_table:
        # Models without terms do not need them, whose import takes time.
        from .effects_start import with_started_effects

        setup = with_started_effects(_with_chosen_inducing(setup, x, y))
    if getattr(model.prior, "count", None) is not None:
        # They stay fixed while the kernel changes, so that all energies are those of one model.
        scales = Scales(model, setup.data)
        chosen = guessed_model(model, scales).prior.layout(setup.data.x).inputs.inducing
        if chosen is not None:
            prior: Any = model.prior
            setup = Setup(Model(prior.with_inducing(chosen), model.likelihood), x, y)
    return setup


def _with_chosen_inducing(setup: Setup, x: Any, y: Any) -> Setup:
    """The same data, with the inducing inputs of sparse terms chosen with guesses of the hyperparameters."""
    prior: Any = setup.model.prior
    if not prior.chooses_inducing:
        return setup
    guessed = guessed_model(setup.model, Scales(setup.model, setup.data)).prior
    return Setup(Model(prior.with_chosen_inducing(guessed, setup.data.x), setup.model.likelihood), x, y)


def _finish(evaluator, searches, trace, interrupted, hessian: Any, find_profiles: Any, started, throw) -> FitResult:
    """Run inference with the learned hyperparameters, and assemble the result.

    `hessian` can be a function, to be called when standard errors are first used; `find_profiles` is one.
    """
    space, setup = evaluator.space, evaluator.setup
    best = evaluator.candidate if evaluator.best is None else evaluator.best
    if best is None and interrupted:
        raise KeyboardInterrupt
    if best is None:
        check_prior(setup.model.prior, setup.data.x, setup.problem.workspace)
        if np.any(evaluator.undefined):
            names = ", ".join(space.names_of(evaluator.undefined))
            raise RuntimeError(
                f"the energy has no finite derivative in {names}: a function in the model has none where it is used, "
                "such as the square root of a distance at 0. Rewrite it there (jnp.where on both its argument and its "
                "value), or make these parameters Fixed()"
            )
        raise RuntimeError(
            "no hyperparameters were found with which inference works: try infer with fixed ones first, to see why"
        )
    _, unconstrained, sites = best
    if interrupted:
        status = Status.INTERRUPTED
    elif space.size == 0:
        status = Status.CONVERGED
    else:
        lowest = lowest_of(searches)
        status = lowest.status
        # Evaluations for the curvature may be lower by rounding: the end point of the search is used.
        unconstrained = lowest.unconstrained if np.isfinite(lowest.total) else unconstrained
    model = with_values(space.slots, setup.model, space.values_at(unconstrained))
    run = Run(setup.with_model(model), evaluator.method, evaluator.step, None, FINEST)
    # The best evaluation is not repeated, unless a run before this one made it, the search ended elsewhere, or
    # inference was not as exact as the result has to be.
    known = evaluator.best_report if interrupted or np.array_equal(best[1], unconstrained) else None
    if known is not None and evaluator.best_tolerance > FINEST and not known.residual <= FINEST:
        known = None
    result = run.result(evaluator.report_at(unconstrained, sites) if known is None else known)
    is_later, found = callable(hessian), functools.partial(errors_and_spread, space, unconstrained)
    errors: tuple = ((lambda: found(hessian())), None) if is_later else found(hessian)
    find = None
    if find_profiles is not None and status is Status.CONVERGED:
        find = functools.partial(find_profiles, unconstrained)
    space.note_without_influence(evaluator.slopes, setup.data.y[setup.data.observed])
    fit_result = space.finish(unconstrained, result, status, trace, len(evaluator.record), started, *errors, find)
    report_failure(fit_result, throw, stacklevel=4)
    return fit_result


@contextlib.contextmanager
def _progress(wanted: bool) -> Iterator[Any]:
    if not wanted:
        yield lambda evaluations, lowest: None
        return
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    with Progress(SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()) as bar:
        task = bar.add_task("fit", total=None)

        def report_progress(evaluations: int, lowest: float) -> None:
            bar.update(task, description=f"fit, {evaluations} evaluations, energy {lowest:.6g}")

        yield report_progress
