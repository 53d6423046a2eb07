"""Forecasts of series: `Forecaster`, on the terms of models of tables."""

from .backtest import Backtest
from .forecaster import Forecaster
from .scores import crps_from_quantiles
from .specification import Intervention

__all__ = ["Backtest", "Forecaster", "Intervention", "crps_from_quantiles"]
