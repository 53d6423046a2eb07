"""The demo: robust regression by three methods, counts over a century of time stamps, and how fast that is."""

import itertools
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table
from scipy.stats import norm, t

from . import datasets, kernels, likelihoods, means
from .infer import infer
from .methods.presets import VI, Newton, PowerEP
from .methods.rule import Method
from .model import Model
from .plotting import plot_conditional_mean, plot_prediction, require_matplotlib
from .precision import in_double
from .priors.dense import GP
from .priors.markov import MarkovGP
from .results import Result
from .times import Clock

DEGREES_OF_FREEDOM = 4.0
METHODS = {"VI": VI(), "Newton (Laplace)": Newton(), "power EP, power 0.5": PowerEP(0.5)}


class Standard(NamedTuple):
    """Hyperparameters for data with mean 0 and standard deviation 1."""

    lengthscale: float
    noise: float


GRID = tuple(Standard(*pair) for pair in itertools.product((0.3, 0.4, 0.5, 0.6, 0.7), (0.25, 0.3, 0.35, 0.4)))


def run(out: str | Path, console: Console | None = None) -> tuple[Result, Result]:
    """Fit, compare, time, say what was found, and write `demo.png` to the folder `out`."""
    require_matplotlib()
    console = console or Console()
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    accelerations = robust_regression(console)
    explosions = counts_over_time(console)
    console.print(f"\nFigure: {draw(accelerations, explosions, folder / 'demo.png')}", soft_wrap=True)
    return accelerations, explosions


# Robust regression: the motorcycle data -------------------------------------------------------------


def robust_regression(console: Console) -> Result:
    """Accelerations with outliers, by three methods."""
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
    console.print("\n[bold]What VI found[/bold]")
    for sentence in findings(result, noise, x, y, last=MILLISECONDS[-1]):
        console.print(f"- {sentence}")
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
        result, seconds = timed(model, x, y, method)
        table.add_row(
            name, f"{result.energy:.3f}", str(result.steps), result.status.name.lower(), f"{1e3 * seconds:.0f}"
        )
        results[name] = result
    table.caption = "time without compilation, the shortest of three runs"
    return results, table


def timed(model: Model, x: Any, y: Any, method: Method | None = None, runs: int = 3) -> tuple[Result, float]:
    """What `infer` found, and the seconds that its shortest run took after compilation."""
    infer(model, x, y, method, max_steps=0, throw=False)  # compiles
    seconds = []
    for _ in range(runs):
        start = time.perf_counter()
        result = infer(model, x, y, method)
        seconds.append(time.perf_counter() - start)
    return result, min(seconds)


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


# Counts over time: the coal-mining data ---------------------------------------------------------------

YEAR = np.timedelta64(8766, "h")
TIME_GRID = tuple(itertools.product((5.0, 10.0, 15.0, 20.0, 30.0, 40.0), (0.25, 0.5, 1.0, 2.0)))
"""Lengthscales in years, and variances of the logarithm of the rate."""


class Months(NamedTuple):
    """Counts a month: the middle of each, how many, and how much of a year it is."""

    time: np.ndarray
    count: np.ndarray
    years: Any


def counts_over_time(console: Console) -> Result:
    """Explosions a month over 111 years, and how fast that and a far longer series are."""
    dates = datasets.coal()
    months = by_month(dates)
    console.print(
        f"\n[bold]Coal-mining data[/bold]: {len(dates)} explosions in British mines from {dates[0]} to {dates[-1]}, "
        f"counted in {len(months.count)} months. A Markovian Gaussian process over time stamps with a Matérn-5/2 "
        "kernel, and Poisson counts with the length of every month as their exposure.\n"
    )
    start = time.perf_counter()
    energies = [infer(rate_model(months, *pair), months.time, months.count).energy for pair in TIME_GRID]
    seconds = time.perf_counter() - start
    lengthscale, variance = TIME_GRID[int(np.argmin(energies))]
    console.print(
        f"Hyperparameters: the best of a grid of {len(TIME_GRID)} by VI's energy (from {min(energies):.1f} to "
        f"{max(energies):.1f}), not learned, in {seconds:.1f} s with compilation: lengthscale {lengthscale:g} years, "
        f"variance of the log rate {variance:g}. Fixed: its mean, from the whole record.\n"
    )
    result = infer(rate_model(months, lengthscale, variance), months.time, months.count)
    console.print("[bold]What VI found[/bold]")
    for sentence in rates(result):
        console.print(f"- {sentence}")
    console.print()
    table, calibration = how_fast(months, lengthscale, variance)
    console.print(table)
    console.print(f"\n{calibration}")
    return result


def by_month(dates: np.ndarray) -> Months:
    """Counts in the months of the record, whose first and last are not whole."""
    starts = np.arange(dates[0].astype("datetime64[M]"), dates[-1].astype("datetime64[M]") + 2)
    edges = np.clip(starts.astype("datetime64[D]"), dates[0], dates[-1] + 1)
    days = np.diff(edges)
    count, _ = np.histogram(dates.astype(int), edges.astype(int))
    return Months(edges[:-1] + days.astype("timedelta64[h]") / 2, count, days / YEAR)


def rate_model(months: Months, lengthscale: float, variance: float, markovian: bool = True) -> Model:
    """A log rate a year that is a Gaussian process in time, Markovian or (for numbers of years) dense."""
    kernel = kernels.Matern52(lengthscale=lengthscale, variance=variance)
    level = np.log(months.count.sum() / months.years.sum())
    prior = MarkovGP(kernel, level, unit=YEAR) if markovian else GP(kernel, level)
    return Model(prior, likelihoods.Poisson(exposure=months.years))


def rates(result: Result) -> list[str]:
    """What the posterior says of the rate, in sentences."""
    early, late = np.datetime64("1870-01-01"), np.datetime64("1910-01-01")
    draws = np.exp(result.sample(0, [early, late], 4000)[:, :, 0])
    ratio = draws[:, 0] / draws[:, 1]
    next_year = [np.datetime64("1962-09-22")]
    none = np.exp(result.log_density(next_year, [0], exposure=1.0)[0])
    return [
        f"Around 1870 there were {_with_interval(draws[:, 0])} explosions a year, around 1910 "
        f"{_with_interval(draws[:, 1])}: the rate fell by a factor of {_with_interval(ratio)}.",
        f"For the twelve months after the record {result.predict(next_year, exposure=1.0).mean[0]:.2f} explosions are "
        f"expected, and none with probability {none:.2f}.",
    ]


def _with_interval(draws: np.ndarray) -> str:
    low, middle, high = np.quantile(draws, [0.025, 0.5, 0.975])
    return f"{middle:.1f} (95 % interval {low:.1f} to {high:.1f})"


# How fast -------------------------------------------------------------------------------------------

LONG = 100_000


def how_fast(months: Months, lengthscale: float, variance: float) -> tuple[Table, str]:
    """A table of what a step takes, and a sentence on how good the answer is where the truth is known."""
    table = Table(title="How fast: VI to convergence")
    table.add_column("prior and data")
    for heading in ("rows", "steps", "time a step, ms", "rows a second"):
        table.add_column(heading, justify="right")

    def add(name: str, model: Model, x: np.ndarray, y: np.ndarray, runs: int = 3) -> Result:
        result, seconds = timed(model, x, y, runs=runs)
        a_step = seconds / result.steps
        table.add_row(name, f"{len(y):,}", str(result.steps), f"{1e3 * a_step:.2f}", f"{len(y) / a_step:,.0f}")
        return result

    chain = add("MarkovGP, coal", rate_model(months, lengthscale, variance), months.time, months.count)
    dense = rate_model(months, lengthscale, variance, markovian=False)
    full = add("GP, coal", dense, Clock(YEAR).numbers(months.time), months.count, runs=1)
    model, x, y, f = simulate(LONG)
    long = add("MarkovGP, simulated", model, x, y)

    apart = np.max(np.abs(chain.marginals.mean - full.marginals.mean))
    table.caption = "as measured now, without compilation; rows a second are those of one step"
    miss = np.abs(long.marginals.mean[:, 0] - f) / np.sqrt(long.marginals.covariance[:, 0, 0])
    inside = np.mean(miss < norm.ppf(0.975))
    return table, (
        f"The posterior means of MarkovGP and GP differ by at most {apart:.0e}. Of the simulated log rates, "
        f"{100 * inside:.1f} % lie in their 95 % intervals."
    )


def simulate(rows: int, seed: int = 0) -> tuple[Model, np.ndarray, np.ndarray, np.ndarray]:
    """A model, times 0, 1, 2, …, counts that were drawn from it, and the f that they were drawn with."""
    kernel = kernels.Matern32(lengthscale=50.0)
    (block,) = kernel.blocks()
    transition, noise = (np.asarray(in_double(matrix)(0.0, 1.0)) for matrix in (block.transition, block.noise))
    rng = np.random.default_rng(seed)
    states = np.empty((rows, 2))
    states[0] = rng.multivariate_normal(np.zeros(2), np.asarray(block.covariance(0.0)))
    for row, push in enumerate(rng.multivariate_normal(np.zeros(2), noise, size=rows - 1)):
        states[row + 1] = transition @ states[row] + push
    f = states[:, 0]
    model = Model(MarkovGP(kernel), likelihoods.Poisson())
    return model, np.arange(float(rows)), rng.poisson(np.exp(f)), f


# The figure -----------------------------------------------------------------------------------------

MILLISECONDS = np.linspace(0.0, 75.0, 101)


def draw(accelerations: Result, explosions: Result, path: Path) -> Path:
    """Both fits, one above the other."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.0, 9.0), layout="constrained")
    above, below = figure.subplots(2)

    plot_prediction(accelerations, *datasets.motorcycle(), MILLISECONDS, ax=above)
    above.set_xlabel("time after impact, ms")
    above.set_ylabel("acceleration of the head, g")
    above.set_title("Motorcycle data: Matérn-5/2 Gaussian process, Student-t noise, VI", loc="left")
    above.legend(loc="lower center", frameon=False)

    dates = datasets.coal()
    years, counts = np.unique(dates.astype("datetime64[Y]"), return_counts=True)
    middles = years.astype("datetime64[D]") + 182
    below.bar(middles, counts, width=300.0, color="0.85", label="explosions in the year")
    grid = np.arange("1851-03", "1986-01", 4, dtype="datetime64[M]").astype("datetime64[D]")
    plot_conditional_mean(explosions, grid, x=dates, ax=below, label="rate a year", exposure=1.0)
    below.plot(dates, np.full(len(dates), -0.2), "|", color="#333333", markersize=6, alpha=0.6)
    below.set_ylabel("explosions a year")
    below.set_title("Coal-mining data: Matérn-5/2 Markovian Gaussian process, Poisson counts, VI", loc="left")
    below.legend(loc="upper center", frameon=False)

    figure.savefig(path, dpi=150)
    return path
