"""Predictions of y from q(f): moments, quantiles, densities and draws, accurate for noise of any width."""

from .predict import Prediction

__all__ = ["Prediction"]
