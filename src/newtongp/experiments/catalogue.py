"""The methods of the experiments by the names they have in the figures, and how each is put together."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp

from ..methods.curvature import GaussNewton
from ..methods.presets import VI, Newton, PosteriorLinearisation, PowerEP
from ..methods.rule import Method
from ..methods.safeguard import Heuristic, Riemannian
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
    until: int | None = None
    """The last iteration to be compared: beyond it, runs amplify rounding. None compares all, 0 none."""
    only: tuple[str, ...] = ("motorcycle", "product", "gprn")
    """The case studies in which it is run."""

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


_ON_MOTORCYCLE = ("motorcycle",)

ENTRIES: tuple[Entry, ...] = (
    Entry("heuristic Newton", "Newton", lambda c: _newton(c, Newton(safeguard=Heuristic()))),
    Entry("Riemannian grads Newton", "Newton", lambda c: _newton(c, Newton(safeguard=Riemannian())), until=21),
    Entry("Gauss-Newton", "Newton", lambda c: _newton(c, Newton(GaussNewton())), until=0),
    Entry(
        "Gauss-Newton" + PUBLISHED,
        "Newton",
        lambda c: _newton(c, Newton(ScalarGaussNewton())),
        curve="Gauss-Newton",
        only=_ON_MOTORCYCLE,
    ),
    Entry(
        "quasi-Newton", "Newton", lambda c: _newton(c, Newton(published_quasi_newton(c.damping["Newton"]))), until=81
    ),
    Entry("heuristic VI", "VI", lambda c: _vi(c, VI(safeguard=Heuristic(), cubature=c.cubature))),
    Entry("Riemannian grads VI", "VI", lambda c: _vi(c, VI(safeguard=Riemannian(), cubature=c.cubature)), until=51),
    Entry("variational Gauss-Newton", "VI", lambda c: _vi(c, VI(GaussNewton(), cubature=c.cubature)), until=0),
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
        until=51,
    ),
    Entry(
        "first-order VI", "VI", lambda c: AdamOnSites(learning_rate=ADAM_RATE, loss=Loss("vfe", c.cubature)), until=201
    ),
    Entry("heuristic PEP", "PEP", lambda c: _safeguarded_power_ep(c, Heuristic())),
    Entry("Riemannian grads PEP", "PEP", lambda c: _safeguarded_power_ep(c, Riemannian()), until=21),
    Entry(
        "PEP quasi-Newton",
        "PEP",
        lambda c: _power_ep(
            c,
            ByTheEquations(PowerEP(c.power, published_quasi_newton(c.damping["PEP"]), cubature=c.cubature)),
            jitter=0.0,
        ),
        until=0,
    ),
    Entry("PEP quasi-Newton" + PUBLISHED, "PEP", _published_power_ep_quasi_newton, curve="PEP quasi-Newton", until=81),
    Entry("PL", "PL", lambda c: _pl(c, PosteriorLinearisation(cubature=c.cubature))),
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
        "PL2 Gauss-Newton",
        "PL",
        lambda c: _pl(c, PosteriorLinearisation(order=2, curvature=GaussNewton(), cubature=c.cubature), jitter=0.0),
        until=0,
    ),
    Entry(
        "PL2 Gauss-Newton" + PUBLISHED,
        "PL",
        lambda c: _pl(c, PosteriorLinearisation(order=2, curvature=ScalarGaussNewton(), cubature=c.cubature)),
        curve="PL2 Gauss-Newton",
        only=_ON_MOTORCYCLE,
    ),
    Entry(
        "PL2 quasi-Newton",
        "PL",
        lambda c: _pl(
            c, PosteriorLinearisation(order=2, curvature=published_quasi_newton(c.damping["PL"]), cubature=c.cubature)
        ),
        until=0,
    ),
)
