"""How inference ended: a name and a sentence for each case."""

import enum


class Status(enum.IntEnum):
    """How inference ended: a name and a sentence, both of which are printed.

    >>> print(Status.SINGLE_PASS)
    SINGLE_PASS: One forward and one backward sweep, ...
    >>> Status.CONVERGED.ok
    True
    >>> "step" in Status.MAX_STEPS.sentence
    True
    """

    RUNNING = 0
    CONVERGED = 1
    MAX_STEPS = 2
    STEP_TOO_SMALL = 3
    IMPROPER_POSTERIOR = 4
    IMPROPER_CAVITY = 5
    NON_FINITE = 6
    SINGLE_PASS = 7
    INTERRUPTED = 8
    BOUNDED_SUPPORT = 9
    STALLED = 10

    def __str__(self) -> str:
        return f"{self.name}: {self.sentence}"

    def __format__(self, spec: str) -> str:
        return format(str(self), spec)

    @property
    def ok(self) -> bool:
        """Whether the fixed point was reached."""
        return self is Status.CONVERGED

    @property
    def failed(self) -> bool:
        """Whether the run broke down, so that only its last good step is available."""
        return self in (
            Status.IMPROPER_POSTERIOR,
            Status.IMPROPER_CAVITY,
            Status.NON_FINITE,
            Status.BOUNDED_SUPPORT,
        )

    @property
    def sentence(self) -> str:
        """What happened, and what to try next."""
        return _SENTENCES[self]


_SENTENCES = {
    Status.RUNNING: "Inference has not ended yet.",
    Status.CONVERGED: "Converged: no further update would change the result by more than the tolerance.",
    Status.MAX_STEPS: (
        "The maximum number of steps was reached before convergence: raise max_steps, or continue with infer(..., "
        "sites=result.sites) or, after a fit, with fit(result.model, ...)."
    ),
    Status.SINGLE_PASS: (
        "One forward and one backward sweep, with each row expanded around the prediction from the rows before it. For "
        "the fixed point, use infer(..., sites=result.sites)."
    ),
    Status.INTERRUPTED: ("Interrupted: the best result so far is returned. Continue with fit(result.model, ...)."),
    Status.STEP_TOO_SMALL: (
        "No step, however short, was accepted. With a small residual the result is as accurate as rounding and "
        "cubature allow; with a large residual, try a cubature with more nodes, a smaller power, or another method."
    ),
    Status.STALLED: (
        "The steps do not converge: the residual has not fallen for a hundred steps. For power EP try "
        "step=DoubleLoop(), which is slow but reliable; otherwise try a smaller power, a cubature with more nodes, "
        "or another method."
    ),
    Status.IMPROPER_POSTERIOR: (
        "A step led to a posterior that is not a distribution; the last good step was kept. Use the default "
        "step, a smaller rho, or a method with PSD sites (GaussNewton, QuasiNewton, Heuristic)."
    ),
    Status.IMPROPER_CAVITY: (
        "A step led to a cavity that is not a distribution; the last good step was kept. Use the default "
        "step, a smaller rho, or a smaller power."
    ),
    Status.NON_FINITE: (
        "A step led to infinite or undefined values; the last good step was kept. Use the default step or a "
        "smaller rho, and check the scale of the data against the prior's variance."
    ),
    Status.BOUNDED_SUPPORT: (
        "The density of y is zero beyond a bound on f, and the posterior reaches that bound. VI cannot be used there, "
        "since E_q[log p(y | f)] is minus infinity, and Newton's method only if the mode is inside the bound. Use "
        "PowerEP(1.0), which integrates the density itself."
    ),
}


class ConvergenceWarning(UserWarning):
    """Inference ended with a usable result that is not a fixed point."""


class FitWarning(UserWarning):
    """A result of `fit` that deserves a second look."""
