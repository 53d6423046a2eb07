"""Plots of results. They need matplotlib, which comes with `pip install 'newtongp[plot]'`."""

from .diagnostics import plot_calibration, plot_convergence
from .pieces import require_matplotlib
from .results import plot_result
from .single import plot_conditional_mean, plot_prediction
from .space_time import plot_maps, plot_places
from .terms import plot_terms

__all__ = [
    "plot_calibration",
    "plot_conditional_mean",
    "plot_convergence",
    "plot_maps",
    "plot_places",
    "plot_prediction",
    "plot_result",
    "plot_terms",
    "require_matplotlib",
]
