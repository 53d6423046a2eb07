"""The methods by the names their users know; each is a target with a default curvature."""

from ..numerics.cubature import Cubature, PointRule
from ..validation.numbers import parameter
from .curvature import Curvature, Exact, FirstOrder, GaussNewton
from .rule import Method
from .safeguard import Safeguard
from .target import (
    ExpectedLogDensity,
    LinearisedDensity,
    LogDensity,
    PowerDensity,
    SecondOrderLinearisation,
    StatisticalLinearisation,
)


def Newton(
    curvature: Curvature | None = None, safeguard: Safeguard | None = None, cubature: Cubature | None = None
) -> Method:
    """Newton's method on the log joint, and the Laplace approximation at its mode (`eq:newton-target`).

    >>> Newton(curvature=GaussNewton()).objective
    'log_joint'
    """
    _refuse_rule(cubature, "Newton")
    return Method(LogDensity(), curvature or Exact(), safeguard, cubature)


def VI(
    curvature: Curvature | None = None, safeguard: Safeguard | None = None, cubature: Cubature | None = None
) -> Method:
    """Variational inference by natural gradients: minimises the variational free energy (`eq:vi-target`).

    >>> VI().objective
    'vfe'
    """
    curvature = curvature or Exact()
    minimises = safeguard is None and isinstance(curvature, Exact)
    return Method(ExpectedLogDensity(descent=minimises), curvature, safeguard, cubature)


def PowerEP(
    power: float = 1.0,
    curvature: Curvature | None = None,
    safeguard: Safeguard | None = None,
    cubature: Cubature | None = None,
) -> Method:
    """Power expectation propagation (`eq:pep-target`): power 1 is EP, power → 0 is VI.

    >>> PowerEP(1.5)
    Traceback (most recent call last):
        ...
    ValueError: power must be greater than 0 and at most 1, got 1.5: ...
    """
    value = _power(power)
    return Method(PowerDensity(value), curvature or Exact(), safeguard, cubature)


def PosteriorLinearisation(
    order: int = 1,
    slope: str = "derivative",
    curvature: Curvature | None = None,
    safeguard: Safeguard | None = None,
    cubature: Cubature | None = None,
) -> Method:
    """Posterior linearisation (`eq:pl-target`), or its second-order form with `order=2` (`eq:pl-newton-target`).

    `slope="regression"` makes it the iterated sigma-point smoother of the signal-processing literature.

    >>> PosteriorLinearisation(order=2).target.name
    'pl2'
    """
    if slope not in ("derivative", "regression"):
        raise ValueError(f'slope must be "derivative" or "regression", got {slope!r}')
    if order == 1:
        if slope == "regression" and isinstance(cubature, PointRule):
            raise ValueError('slope="regression" has nothing to regress on with PointRule(): use slope="derivative"')
        return Method(StatisticalLinearisation(slope), curvature or GaussNewton(), safeguard, cubature)
    if order == 2:
        if slope != "derivative":
            raise ValueError('slope="regression" belongs to order=1: leave it out for order=2')
        return Method(SecondOrderLinearisation(), curvature or Exact(), safeguard, cubature)
    raise ValueError(f"order must be 1 or 2, got {order!r}: write order=1 for the usual form")


def Taylor(
    curvature: Curvature | None = None, safeguard: Safeguard | None = None, cubature: Cubature | None = None
) -> Method:
    """Linearisation at the mean: the iterated extended Kalman smoother (`eq:taylor-target`).

    >>> Taylor().target.name
    'taylor'
    """
    _refuse_rule(cubature, "Taylor")
    return Method(LinearisedDensity(), curvature or GaussNewton(), safeguard, cubature)


def FirstOrderVI(learning_rate: float = 0.1, cubature: Cubature | None = None) -> Method:
    """Adam on the variational free energy, over each site's mean and covariance root: a first-order baseline.

    >>> float(FirstOrderVI(learning_rate=0.05).curvature.learning_rate)
    0.05
    """
    return Method(ExpectedLogDensity(descent=True), FirstOrder(learning_rate), None, cubature)


def _power(power: float) -> float:
    remedy = "PowerEP(1.0) is expectation propagation, and VI() the limit at power 0"
    return float(parameter(power, "power", lower=0.0, upper=1.0, strict=(True, False), remedy=remedy))


def _refuse_rule(cubature: Cubature | None, name: str) -> None:
    if cubature is not None and not isinstance(cubature, PointRule):
        raise ValueError(f"{name} looks at the mean alone and integrates nothing: leave cubature out")
