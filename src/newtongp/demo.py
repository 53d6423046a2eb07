"""The demo: motorcycle accelerations with robust noise, by three methods, with a figure."""

import itertools
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table
from scipy.stats import t

from . import datasets, kernels, likelihoods, means
from .infer import infer
from .methods.presets import VI, Newton, PowerEP
from .model import Model
from .plotting import plot_prediction, require_matplotlib
from .priors.dense import GP
from .results import Result

DEGREES_OF_FREEDOM = 4.0
METHODS = {"VI": VI(), "Newton (Laplace)": Newton(), "power EP, power 0.5": PowerEP(0.5)}


class Standard(NamedTuple):
    """Hyperparameters for data with mean 0 and standard deviation 1."""

    lengthscale: float
    noise: float


GRID = tuple(Standard(*pair) for pair in itertools.product((0.3, 0.4, 0.5, 0.6, 0.7), (0.25, 0.3, 0.35, 0.4)))


def run(out: str | Path, console: Console | None = None) -> Result:
    """Fit, compare, say what was found, and write `motorcycle.png` to the folder `out`."""
    require_matplotlib()
    console = console or Console()
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    x, y = datasets.motorcycle()
    console.print(
        f"[bold]Motorcycle data[/bold]: {len(y)} accelerations of a head (in g) in the {x.max():.0f} ms after an "
        "impact. A Gaussian process with a Matérn-5/2 kernel, and Student-t noise, which bears outliers.\n"
    )

    chosen, energies = choose(x, y)
    kernel, noise = in_data_units(chosen, x, y)
    model = assemble(chosen, x, y)
    console.print(
        f"Hyperparameters: the best of a grid of {len(GRID)} by VI's energy (from {min(energies):.1f} to "
        f"{max(energies):.1f}), not learned: lengthscale {float(kernel.lengthscale):.1f} ms, noise scale "
        f"{float(noise.scale):.1f} g. Fixed: prior standard deviation {y.std():.0f} g, "
        f"{DEGREES_OF_FREEDOM:g} degrees of freedom.\n"
    )

    results, table = compare(model, x, y)
    console.print(table)
    result = results["VI"]
    grid = np.linspace(0.0, 75.0, 101)
    console.print("\n[bold]What VI found[/bold]")
    for sentence in findings(result, noise, x, y, last=grid[-1]):
        console.print(f"- {sentence}")
    console.print(f"\nFigure: {draw(result, x, y, grid, folder / 'motorcycle.png')}", soft_wrap=True)
    return result


def in_data_units(standard: Standard, x: np.ndarray, y: np.ndarray) -> tuple[kernels.Matern52, likelihoods.StudentT]:
    """Kernel and noise of standardised data, written in the units of the data."""
    kernel = kernels.Matern52(variance=y.var(), lengthscale=standard.lengthscale * x.std())
    return kernel, likelihoods.StudentT(df=DEGREES_OF_FREEDOM, scale=standard.noise * y.std())


def assemble(standard: Standard, x: np.ndarray, y: np.ndarray) -> Model:
    """The model of standardised data, written in the units of the data: its predictions need no way back."""
    kernel, noise = in_data_units(standard, x, y)
    return Model(GP(kernel, mean=means.Constant(y.mean())), noise)


def choose(x: np.ndarray, y: np.ndarray) -> tuple[Standard, list[float]]:
    """The point of the grid with the lowest energy, and all energies."""
    energies = [infer(assemble(standard, x, y), x, y).energy for standard in GRID]
    return GRID[int(np.argmin(energies))], energies


def compare(model: Model, x: np.ndarray, y: np.ndarray) -> tuple[dict[str, Result], Table]:
    """Every method on the same model, and the table of how it went."""
    table = Table(title="Three methods on the same model")
    table.add_column("method")
    for heading in ("energy (about −log p(y))", "steps", "status", "time, ms"):
        table.add_column(heading, justify="right")
    results = {}
    for name, method in METHODS.items():
        infer(model, x, y, method=method)  # compiles
        start = time.perf_counter()
        result = infer(model, x, y, method=method)
        milliseconds = 1e3 * (time.perf_counter() - start)
        table.add_row(
            name, f"{result.energy:.3f}", str(result.steps), result.status.name.lower(), f"{milliseconds:.0f}"
        )
        results[name] = result
    table.caption = "time without compilation"
    return results, table


def findings(result: Result, noise: likelihoods.StudentT, x: np.ndarray, y: np.ndarray, last: float) -> list[str]:
    """What the posterior says, in sentences."""
    fine = np.linspace(x.min(), x.max(), 300)
    curves = result.sample(0, fine, 4000)[:, :, 0]
    peaks, times = curves.min(axis=1), fine[curves.argmin(axis=1)]
    low, high = np.quantile(peaks, [0.025, 0.975])
    early, late = np.quantile(times, [0.025, 0.975])
    outliers = int(np.sum(result.sites.precision[:, 0, 0] < 0.0))
    draws = result.sample_y(1, np.append(x, last), 4000)
    lower, upper = np.quantile(draws, [0.025, 0.975], axis=0)
    inside = np.mean((lower[:-1] <= y) & (y <= upper[:-1]))
    return [
        f"The head decelerates most at {np.median(times):.1f} ms (95 % interval {early:.1f} to {late:.1f} ms), with "
        f"{-np.median(peaks):.0f} g (95 % interval {-high:.0f} to {-low:.0f} g).",
        f"The noise has a scale of {float(noise.scale):.0f} g; its middle half lies within "
        f"±{_middle_half(noise):.0f} g.",
        f"{outliers} of the {len(y)} rows are so far from the curve that the robust noise treats them as outliers "
        "(the precision of their sites is negative).",
        f"{100 * inside:.0f} % of the rows lie in the 95 % band. The noise of this model is the same at all times, so "
        "the band is too wide in the first 15 ms, where the data hardly vary.",
        f"At {last:.0f} ms, {last - x.max():.0f} ms after the last row, the forecast is "
        f"{np.median(draws[:, -1]):.0f} g (95 % interval {lower[-1]:.0f} to {upper[-1]:.0f} g): back at the prior, "
        "as it should be so far out.",
    ]


def _middle_half(noise: likelihoods.StudentT) -> float:
    """The upper quartile of the noise."""
    return float(noise.scale) * float(t.ppf(0.75, float(noise.df)))


def draw(result: Result, x: np.ndarray, y: np.ndarray, grid: np.ndarray, path: Path) -> Path:
    """The figure."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.0, 5.0), layout="constrained")
    axes = plot_prediction(result, x, y, grid, ax=figure.subplots())
    axes.set_xlabel("time after impact, ms")
    axes.set_ylabel("acceleration of the head, g")
    axes.set_title("Motorcycle data: Matérn-5/2 Gaussian process, Student-t noise, VI", loc="left")
    axes.legend(loc="lower center", frameon=False)
    figure.savefig(path, dpi=150)
    return path
