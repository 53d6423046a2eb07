"""The three case studies of `sec:experiments`: data, folds, models and settings, as they were published."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from newtongp import datasets, kernels, likelihoods
from newtongp.model import Model
from newtongp.numerics.cubature import Cubature, GaussHermite, Unscented
from newtongp.priors.markov import MarkovGP


@dataclass(frozen=True)
class Split:
    """One fold or data set, in order of time: what is trained on, what is tested on, and the truth if there is one."""

    name: str
    x: np.ndarray
    """(N,)"""
    y: np.ndarray
    """(N, P)"""
    train: np.ndarray
    """(N, P), true where an output is trained on."""
    test: np.ndarray
    """(N, P), true where an output is tested on."""
    truth: np.ndarray | None = None
    """(N, K): true latents, or outputs without noise."""


@dataclass(frozen=True)
class Case:
    """One case study."""

    name: str
    title: str
    model: Model
    splits: tuple[Split, ...]
    cubature: Cubature
    step_size: float
    """ρ of `eq:local-update`."""
    damping: dict[str, float]
    """ξ of `sec:damped-quasi-newton`, by family."""
    iterations: int
    truth_is: str | None = None
    """What `Split.truth` holds: "latents" or "outputs"."""
    density_floor: float = 0.0
    """The least density that the published code would take the logarithm of."""
    power: float = 0.5
    """α of power EP."""
    rows_at_once: int | None = None
    """Rows whose likelihoods are looked at together; None for all. Few stay in the processor's cache."""
    compile_quickly: bool = True
    """Whether compilation takes longer than what a slower program costs."""


def _folds(x: np.ndarray, y: np.ndarray, shuffled: int, truth: np.ndarray | None = None) -> tuple[Split, ...]:
    """Four folds of the first `shuffled` rows, in the order of NumPy's legacy generator with seed 123."""
    parts = np.split(np.random.RandomState(123).permutation(shuffled), 4)
    order = np.argsort(x[:shuffled], kind="stable")
    splits = []
    for number, part in enumerate(parts):
        test = np.zeros((shuffled, 1), dtype=bool)
        test[part] = True
        held_out = test[order]
        known = None if truth is None else truth[order]
        splits.append(Split(f"fold {number + 1}", x[order], y[order][:, None], ~held_out, held_out, known))
    return tuple(splits)


def motorcycle() -> Case:
    """Regression with heteroscedastic noise, `sec:hsced`.

    The last of the 133 rows counts in the standardisation, but is in neither set of any fold.
    """
    x, y = ((column - column.mean()) / column.std() for column in datasets.motorcycle())
    kernel = kernels.Independent([kernels.Matern32(), kernels.Matern32()])
    return Case(
        name="motorcycle",
        title="Heteroscedastic noise (motorcycle data)",
        model=Model(MarkovGP(kernel, pieces=1), likelihoods.HeteroscedasticGaussian(link="softplus")),
        splits=_folds(x, y, 132),
        cubature=GaussHermite(20),
        step_size=0.3,
        damping=dict.fromkeys(("Newton", "VI", "PEP", "PL"), 0.5),
        iterations=500,
    )


def product() -> Case:
    """Amplitude demodulation: an oscillation times a positive amplitude.

    The likelihood's variance is 0.1, while the noise of the signal was drawn with standard deviation 0.1.
    """
    x, y, latents = datasets.product()
    oscillator = kernels.Cosine(period=5.0) * kernels.Matern32(lengthscale=500.0)
    kernel = kernels.Independent([oscillator, kernels.Matern52(lengthscale=3.0, variance=2.0)])
    return Case(
        name="product",
        title="Amplitude demodulation (product of two latents)",
        model=Model(MarkovGP(kernel, pieces=1), likelihoods.Product(variance=0.1, link="softplus")),
        splits=_folds(x, y, 1000, latents),
        cubature=GaussHermite(20),
        step_size=0.1,
        damping={"Newton": 0.4, "VI": 0.5, "PEP": 0.5, "PL": 0.5},
        iterations=300,
        truth_is="latents",
    )


GPRN_NOISE = np.array([[0.02, -0.015, -0.005], [-0.015, 0.04, 0.01], [-0.005, 0.01, 0.06]])
GPRN_REMOVED = slice(133, 266)
"""Rows in which the second and third output are removed."""


def gprn() -> Case:
    """The Gaussian process regression network, `sec:gprn`.

    The weights enter as W + 0.1, without which every gradient is zero at the start; the data were sampled without it.
    """
    splits = []
    for index in range(4):
        x, y, truth = datasets.gprn(index)
        test = np.zeros(y.shape, dtype=bool)
        test[GPRN_REMOVED, 1:] = True
        splits.append(Split(f"data set {index + 1}", x, y, ~test, test, truth))
    signals = [kernels.Matern52(lengthscale=10.0) for _ in range(2)]
    weights = [kernels.Matern52(lengthscale=70.0) for _ in range(6)]
    network = likelihoods.RegressionNetwork(outputs=3, nodes=2, covariance=GPRN_NOISE, weight_offset=0.1)
    return Case(
        name="gprn",
        title="Gaussian process regression network",
        model=Model(MarkovGP(kernels.Independent([*signals, *weights]), pieces=1), network),
        splits=tuple(splits),
        cubature=Unscented(5),
        step_size=0.3,
        damping=dict.fromkeys(("Newton", "VI", "PEP", "PL"), 0.3),
        iterations=1000,
        truth_is="outputs",
        density_floor=1e-6,
        rows_at_once=8,
        compile_quickly=False,
    )


CASES: dict[str, Callable[[], Case]] = {"motorcycle": motorcycle, "product": product, "gprn": gprn}


def training_outputs(split: Split) -> np.ndarray:
    """y as a user would give it: NaN where an output is not trained on."""
    return np.where(split.train, split.y, np.nan)


def test_outputs(split: Split) -> np.ndarray:
    """y with NaN where an output is not tested on."""
    return np.where(split.test, split.y, np.nan)
