"""The step that runs the double loop of power EP."""

import equinox as eqx

from ...validation.arguments import whole
from .base import Step
from .damped import Damped

CLOSE = 1e-4
"""The residual at which a double loop is followed by damped steps."""


class DoubleLoop(Step):
    """For power EP that does not converge: the double loop, slow but reliable, followed by `Damped` steps.

    An inner loop maximises a concave function of the sites while the marginals from which cavities are computed are
    fixed; an outer loop updates these marginals. It conditions the prior at most `most` times.

    >>> DoubleLoop(most=500).most
    500
    """

    monitors = "residual"
    most: int = eqx.field(static=True)
    then: Damped

    def __init__(self, most: int = 5000):
        self.most = whole(most, "most", such_as=5000)
        self.then = Damped()

    def start(self, sites, stationary, allows_psd_fallback=False):
        return self.then.start(sites, stationary, allows_psd_fallback)

    def size(self, state):
        return self.then.size(state)

    def trial(self, state, move):
        return self.then.trial(state, move)

    def judge(self, state, move, before, after, psd):
        return self.then.judge(state, move, before, after, psd)
