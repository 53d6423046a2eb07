"""The methods of the experiments by the names they have in the figures, and how each is put together."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp

from newtongp.methods.curvature import GaussNewton
from newtongp.methods.presets import VI, Newton, PosteriorLinearisation, PowerEP
from newtongp.methods.rule import Method
from newtongp.methods.safeguard import Heuristic, Riemannian

from .cases import Case
from .published import (
    JITTER,
    LOST_PRECISION,
    ByTheEquations,
    PowerDensityAtNodes,
    PublishedPowerEP,
    PublishedPowerEPQuasiNewton,
    RowRule,
    ScalarGaussNewton,
    published_quasi_newton,
)
from .runner import AdamOnSites, Loss, RowByRow, Scheme

FAMILIES = {"Newton": "Newton", "VI": "variational inference", "PEP": "power EP", "PL": "posterior linearisation"}
ADAM_RATE = 0.1


@dataclass(frozen=True)
class Entry:
    """One method of the experiments."""

    name: str
    family: str
    make: Callable[[Case], Scheme]
    curve: str | None = None
    """The published curve that it is compared with."""
    until: Mapping[str, int] = field(default_factory=dict)
    """The last iteration to be compared, by case study: beyond it, runs amplify rounding. 0 compares none; without an
    entry all are compared."""
    only: tuple[str, ...] = ("motorcycle", "product", "gprn")
    """The case studies in which it is run."""

    def last_compared(self, case: Case) -> int:
        """The last iteration that can be compared with the published curve; 0 where there is nothing to compare."""
        return self.until.get(case.name, case.iterations)

    @property
    def as_published(self) -> bool:
        """Whether it departs from the paper's equations where the published code did."""
        return self.name.endswith(PUBLISHED)


PUBLISHED = " (as published)"


def _newton(case: Case, method: Method) -> Scheme:
    return RowByRow(rule=ByTheEquations(method), step_size=case.step_size, loss=Loss("newton", case.cubature))


def _vi(case: Case, method: Method) -> Scheme:
    return RowByRow(rule=ByTheEquations(method), step_size=case.step_size, loss=Loss("vfe", case.cubature))


def _power_ep(case: Case, rule: RowRule, jitter: float = JITTER) -> Scheme:
    return RowByRow(
        rule=rule, step_size=case.step_size, loss=Loss("pep", case.cubature, case.power, jitter, case.density_floor)
    )


def _pl(case: Case, method: Method, jitter: float = JITTER) -> Scheme:
    return RowByRow(
        rule=ByTheEquations(method),
        step_size=case.step_size,
        loss=Loss("pep", case.cubature, 1.0, jitter, case.density_floor),
    )


def _power_density(case: Case) -> PowerDensityAtNodes:
    return PowerDensityAtNodes(case.power, case.density_floor)


def _safeguarded_power_ep(case: Case, safeguard: Any) -> Scheme:
    method = PowerEP(case.power, safeguard=safeguard, cubature=case.cubature)
    method = Method(_power_density(case), method.curvature, safeguard, case.cubature)
    latents = case.model.likelihood.num_latents
    lost = jnp.ones((latents, latents)) if isinstance(safeguard, Riemannian) else jnp.eye(latents)
    return _power_ep(case, PublishedPowerEP(method, LOST_PRECISION * lost))


def _published_power_ep_quasi_newton(case: Case) -> Scheme:
    curvature = published_quasi_newton(case.damping["PEP"])
    method = Method(_power_density(case), curvature, None, case.cubature)
    return _power_ep(case, PublishedPowerEPQuasiNewton(method))


def _published_pl2_gauss_newton(case: Case) -> Scheme:
    curvature = ScalarGaussNewton() if case.name == "motorcycle" else GaussNewton("full")
    return _pl(case, PosteriorLinearisation(order=2, curvature=curvature, cubature=case.cubature))


_ON_MOTORCYCLE = ("motorcycle",)
_NOT_FOLLOWED = {"motorcycle": 0, "product": 0, "gprn": 0}
"""For curves whose published runs did something else than the equations."""

ENTRIES: tuple[Entry, ...] = (
    Entry("heuristic Newton", "Newton", lambda c: _newton(c, Newton(safeguard=Heuristic())), until={"gprn": 61}),
    Entry(
        "Riemannian grads Newton",
        "Newton",
        lambda c: _newton(c, Newton(safeguard=Riemannian())),
        until={"motorcycle": 21, "product": 131},
    ),
    Entry(
        "Gauss-Newton",
        "Newton",
        lambda c: _newton(c, Newton(GaussNewton())),
        until={"motorcycle": 0, "product": 231, "gprn": 1},
    ),
    Entry(
        "Gauss-Newton" + PUBLISHED,
        "Newton",
        lambda c: _newton(c, Newton(ScalarGaussNewton())),
        curve="Gauss-Newton",
        only=_ON_MOTORCYCLE,
    ),
    Entry(
        "quasi-Newton",
        "Newton",
        lambda c: _newton(c, Newton(published_quasi_newton(c.damping["Newton"]))),
        until={"motorcycle": 81, "gprn": 61},
    ),
    Entry("heuristic VI", "VI", lambda c: _vi(c, VI(safeguard=Heuristic(), cubature=c.cubature))),
    Entry(
        "Riemannian grads VI",
        "VI",
        lambda c: _vi(c, VI(safeguard=Riemannian(), cubature=c.cubature)),
        until={"motorcycle": 51, "product": 111},
    ),
    Entry(
        "variational Gauss-Newton",
        "VI",
        lambda c: _vi(c, VI(GaussNewton(), cubature=c.cubature)),
        until={"motorcycle": 0},
    ),
    Entry(
        "variational Gauss-Newton" + PUBLISHED,
        "VI",
        lambda c: _vi(c, VI(ScalarGaussNewton(), cubature=c.cubature)),
        curve="variational Gauss-Newton",
        only=_ON_MOTORCYCLE,
    ),
    Entry(
        "variational quasi-Newton",
        "VI",
        lambda c: _vi(c, VI(published_quasi_newton(c.damping["VI"]), cubature=c.cubature)),
        until={"motorcycle": 51, "product": 201},
    ),
    Entry(
        "first-order VI",
        "VI",
        lambda c: AdamOnSites(learning_rate=ADAM_RATE, loss=Loss("vfe", c.cubature)),
        until={"motorcycle": 201, "product": 81},
    ),
    Entry("heuristic PEP", "PEP", lambda c: _safeguarded_power_ep(c, Heuristic())),
    Entry(
        "Riemannian grads PEP",
        "PEP",
        lambda c: _safeguarded_power_ep(c, Riemannian()),
        until={"motorcycle": 21, "product": 251},
    ),
    Entry(
        "PEP quasi-Newton",
        "PEP",
        lambda c: _power_ep(
            c,
            ByTheEquations(PowerEP(c.power, published_quasi_newton(c.damping["PEP"]), cubature=c.cubature)),
            jitter=0.0,
        ),
        until=_NOT_FOLLOWED,
    ),
    Entry(
        "PEP quasi-Newton" + PUBLISHED,
        "PEP",
        _published_power_ep_quasi_newton,
        curve="PEP quasi-Newton",
        until={"motorcycle": 81, "product": 191, "gprn": 201},
    ),
    Entry("PL", "PL", lambda c: _pl(c, PosteriorLinearisation(cubature=c.cubature)), until={"product": 261}),
    Entry(
        "PL quasi-Newton",
        "PL",
        lambda c: _pl(
            c, PosteriorLinearisation(curvature=published_quasi_newton(c.damping["PL"]), cubature=c.cubature)
        ),
    ),
    Entry(
        "heuristic PL2",
        "PL",
        lambda c: _pl(c, PosteriorLinearisation(order=2, safeguard=Heuristic(), cubature=c.cubature)),
    ),
    Entry(
        "Riemannian grads PL2",
        "PL",
        lambda c: _pl(c, PosteriorLinearisation(order=2, safeguard=Riemannian(), cubature=c.cubature)),
        until={"product": 191},
        only=("product",),
    ),
    Entry(
        "PL2 Gauss-Newton",
        "PL",
        lambda c: _pl(c, PosteriorLinearisation(order=2, curvature=GaussNewton(), cubature=c.cubature), jitter=0.0),
        until=_NOT_FOLLOWED,
    ),
    Entry(
        "PL2 Gauss-Newton" + PUBLISHED,
        "PL",
        _published_pl2_gauss_newton,
        curve="PL2 Gauss-Newton",
        only=("motorcycle", "product"),
    ),
    Entry(
        "PL2 quasi-Newton",
        "PL",
        lambda c: _pl(
            c, PosteriorLinearisation(order=2, curvature=published_quasi_newton(c.damping["PL"]), cubature=c.cubature)
        ),
        until=_NOT_FOLLOWED,
    ),
)
