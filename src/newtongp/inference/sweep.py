"""The classical smoothers: one pass of a filter that linearises at its own predictions, and one of a smoother.

`infer` expands every row's likelihood around the posterior marginal and iterates. A filter expands it once, around the
prediction from earlier rows. Extended, unscented, Gauss–Hermite and assumed density filters differ only in the method.
"""

from typing import Any

from .._runtime.double import in_double, to_host
from ..methods.curvature import QuasiNewton
from ..methods.presets import VI
from ..methods.rule import Method
from ..methods.safeguard import Riemannian
from ..model import Model
from ..priors.markov import MarkovGP
from ..priors.temporal import TemporalPrior
from ..results.result import Result
from ..results.status import Status
from .compatibility import check_choices
from .infer import Run
from .problem import Setup
from .starts import sweep_in_time
from .steps.constant import Constant


@in_double
def filter_sweep(model: Model, x: Any, y: Any, method: Method | None = None) -> Result:
    """The posterior from one forward and one backward sweep over time, for a Markovian prior.

    With `Taylor()` it is the extended Kalman filter and smoother, with
    `PosteriorLinearisation(slope="regression", cubature=Unscented(3))` the unscented one, with `GaussHermite` nodes the
    Gauss–Hermite one, with `PowerEP(1.0)` assumed density filtering. Rows at the same time are processed one after the
    other. The result has the same type as that of `infer`, and `sites=result.sites` is a good start for `infer`.

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
    if isinstance(model.prior, MarkovGP) and model.prior.is_sparse:
        raise ValueError(
            "filter_sweep goes from row to row, and rows between inducing times are not in a chain: use MarkovGP "
            "without inducing="
        )
    setup = Setup(model, x, y)
    sites = setup.order.rows(to_host(sweep_in_time(setup.problem, method)))
    run = Run(setup, method, step, sites, 0.0)
    result = run.result(run.finish(0))
    result.status = Status.SINGLE_PASS
    return result


def _check_method(method: Any) -> None:
    if method.curvature.moves_all_rows:
        raise ValueError("filter_sweep makes one update per row, and FirstOrderVI needs many: use VI() instead")
    if isinstance(method.curvature, QuasiNewton) or isinstance(method.safeguard, Riemannian):
        raise ValueError(
            "filter_sweep makes one update per row, and quasi-Newton and Riemannian methods start from an earlier one: "
            "use Exact() or GaussNewton() curvature without a Riemannian safeguard"
        )
