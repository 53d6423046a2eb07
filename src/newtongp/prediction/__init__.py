"""From q(f) to y: moments, quantiles, densities and draws, by integrals that are accurate for noise of any width."""

from .predict import Prediction

__all__ = ["Prediction"]
