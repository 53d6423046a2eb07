"""Estimators for scikit-learn: `GPRegressor` and `GPClassifier`. They need scikit-learn 1.6 or later."""

try:
    from .classifier import GPClassifier
    from .regressor import GPRegressor
except ImportError as error:
    if not (error.name or "").startswith("sklearn"):
        raise
    raise ImportError(
        "newtongp.sklearn needs scikit-learn 1.6 or later: install it with pip install 'newtongp[sklearn]'"
    ) from error

__all__ = ["GPClassifier", "GPRegressor"]
