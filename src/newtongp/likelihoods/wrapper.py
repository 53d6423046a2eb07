"""The base class of likelihoods that wrap others."""

from typing import Any

import equinox as eqx

from . import support as supports
from .base import Likelihood


class Wrapper(Likelihood):
    """A likelihood that wraps another, and passes on its row parameters (an exposure, a number of trials)."""

    base: eqx.AbstractVar[Likelihood]

    @property
    def support(self) -> supports.Support:
        return self.base.support

    def __getattr__(self, name: str) -> Any:
        # Called only for missing attributes: row parameters of the wrapped likelihood.
        inside = self.__dict__.get("base")
        if inside is not None and name in inside.row_parameters:
            return getattr(inside, name)
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    def check_support(self, y):
        self.base.check_support(y)

    def check_row_parameter(self, name, value):
        return self.base.check_row_parameter(name, value)
