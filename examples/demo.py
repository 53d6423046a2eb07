"""The demo: three data sets, each fitted, drawn, checked and saved, and a page that shows it all.

Every story begins with four lines of code, kept as text. The demo runs this text and the page shows it, so the code
that readers see is the code that was run.
"""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from rich.console import Console
from scipy.stats import norm

from newtongp import datasets
from newtongp.inference.infer import infer
from newtongp.likelihoods.counts import Poisson
from newtongp.model import Model
from newtongp.plotting import require_matplotlib
from newtongp.report.page import Picture, Section, calibration_picture, convergence_picture, write_report
from newtongp.results.fit_result import FitResult
from newtongp.results.result import Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Story(NamedTuple):
    """A data set, the code that fits it, and the figures and findings to report."""

    title: str
    text: tuple[str, ...]
    code: str
    """Creates `result` and its `figure`."""
    pictures: "Callable[[Result, Figure], list[Picture]]"
    findings: Callable[[Any], list[str]]


def run(out: str | Path, console: Console | None = None, stories: "tuple[Story, ...] | None" = None) -> list[Result]:
    """Run all stories, print their findings, and write the folder `report` in the folder `out`."""
    require_matplotlib()
    console = console or Console()
    folder = Path(out) / "report"
    folder.mkdir(parents=True, exist_ok=True)
    begin = time.perf_counter()
    sections = [_tell(story, console) for story in (STORIES if stories is None else stories)]
    page = write_report(folder, sections, "newtongp on three data sets", _INTRODUCTION)
    seconds = time.perf_counter() - begin
    console.print(f"\n[bold]Report[/bold]: {page} ({seconds:.0f} s in all)", soft_wrap=True)
    return [section.result for section in sections]


_INTRODUCTION = (
    "Gaussian noise with a constant variance is wrong for these three kinds of data: measurements whose noise changes, "
    "counts, and classes. Each model is a Gaussian process with a likelihood that suits the data. All hyperparameters "
    "were learned from the data alone, and every prediction is of y itself.",
)


def _tell(story: Story, console: Console) -> Section:
    console.print(f"\n[bold]{story.title}[/bold]")
    for paragraph in story.text:
        console.print(paragraph)
    result, figure = run_code(story.code)
    summary = result.summary()
    console.print()
    console.print(summary)
    pictures, findings = story.pictures(result, figure), story.findings(result)
    for sentence in findings:
        console.print(f"- {sentence}")
    return Section(story.title, result, story.text, pictures, findings, story.code, summary)


def run_code(code: str) -> "tuple[Result, Figure]":
    """Run a story's code, and return the `result` and the `figure` that it creates."""
    names: dict[str, Any] = {}
    exec(compile(code, "<demo>", "exec"), names)
    return names["result"], names["figure"]


def _label(figure: "Figure", *labels: tuple[str, str]) -> None:
    """Label the axes of the first panels, with units."""
    for ax, (below, beside) in zip(figure.axes, labels, strict=False):
        ax.set(xlabel=below, ylabel=beside)


# Noise that changes: the motorcycle data ----------------------------------------------------------------

_MOTORCYCLE = """
import newtongp as ng

x, y = ng.datasets.motorcycle()
model = ng.Model(ng.MarkovGP("matern32"), ng.likelihoods.HeteroscedasticGaussian(link="exp"))
result = ng.fit(model, x, y)
figure = result.plot(latents=True)
"""


def _motorcycle_pictures(result: Result, figure: "Figure") -> list[Picture]:
    _label(figure, ("", "acceleration, g"), ("", "mean, g"), ("time after impact, ms", "log of the noise"))
    caption = (
        "Accelerations of the head, with bands for 50 % and 95 % of new data. Below, the two latents: the mean, and "
        "the logarithm of the noise's standard deviation."
    )
    return [Picture(figure, caption), calibration_picture(result), convergence_picture(result)]


def _motorcycle_findings(result: Result) -> list[str]:
    times = np.linspace(result.data.x.min(), result.data.x.max(), 201)  # as many as in the figure
    latent = result.predict(times).latent
    noise, mean = np.exp(latent.mean[:, 1]), latent.mean[:, 0]
    lowest = int(np.argmin(mean))
    half = norm.ppf(0.975) * np.sqrt(latent.covariance[lowest, 0, 0])
    quiet, loud = noise[times < 12.0].mean(), int(np.argmax(noise))
    return [
        f"The head is slowed down most at about {times[lowest]:.0f} ms, by {-mean[lowest]:.0f} ± {half:.0f} g (95 %).",
        f"The noise has a standard deviation of {quiet:.1f} g before 12 ms and of {noise[loud]:.0f} g at "
        f"{times[loud]:.0f} ms. Noise of a constant size would be too large early and too small late.",
    ]


# Counts over time: the coal-mining data -----------------------------------------------------------------

_COAL = """
import newtongp as ng

year, explosions = ng.datasets.coal_by_year()
model = ng.Model(ng.MarkovGP("matern52"), "poisson")
result = ng.fit(model, year, explosions)
figure = result.plot(grid=range(1852, 1977))
"""
_YEARS = np.arange(1852.0, 1977.0)


def _coal_pictures(result: Result, figure: "Figure") -> list[Picture]:
    _label(figure, ("year", "explosions in the year"))
    caption = "Explosions per year, with bands for 50 % and 95 % of new counts and a forecast for fifteen years."
    return [Picture(figure, caption), calibration_picture(result), convergence_picture(result)]


def _coal_findings(result: Result) -> list[str]:
    prediction = result.predict(_YEARS)
    latent = prediction.latent

    def rate(year: int) -> str:
        row = int(np.searchsorted(_YEARS, year))
        half = norm.ppf(0.975) * np.sqrt(latent.covariance[row, 0, 0])
        low, middle, high = np.exp(latent.mean[row, 0] + np.array([-half, 0.0, half]))
        return f"{middle:.1f} a year in {year} (95 % interval {low:.1f} to {high:.1f})"

    expected = prediction.mean[np.searchsorted(_YEARS, 1962)]
    days, seconds = _coal_by_day(result)
    return [
        f"The rate fell from {rate(1870)} to {rate(1910)}.",
        f"For 1962, the first year after these data, {expected:.1f} explosions are expected. In later years the "
        "interval widens, as it should.",
        f"Speed: counted by day, the same period has {days.data.y.shape[0]} rows. Inference takes "
        f"{1e3 * seconds:.0f} ms once it is compiled: {days.steps} steps of "
        f"{1e9 * seconds / (days.steps * days.data.y.shape[0]):.0f} ns per row. The time grows linearly with the "
        "number of rows, because this Gaussian process in time is a state space model.",
    ]


def _coal_by_day(result: Result) -> tuple[Result, float]:
    """Inference with the same prior and one row per day, and the time of the shortest of three runs in seconds."""
    first, last = np.datetime64("1852-01-01"), np.datetime64("1961-12-31")
    days = np.arange(first, last + np.timedelta64(1, "D"))
    dates = datasets.coal()
    dates = dates[(dates >= first) & (dates <= last)]
    counts = np.bincount((dates - first).astype(int), minlength=days.size)
    # The input of a year is its number, so the year extends half a unit to either side.
    in_years = 1851.5 + (np.arange(days.size) + 0.5) * (110.0 / days.size)
    model = Model(result.model.prior, Poisson(exposure=110.0 / days.size))
    seconds = []
    for _ in range(4):  # the first one compiles
        begin = time.perf_counter()
        found = infer(model, in_years, counts)
        seconds.append(time.perf_counter() - begin)
    return found, min(seconds[1:])


# Two classes: the iris data -----------------------------------------------------------------------------

_IRIS = """
import newtongp as ng

sepals, is_virginica = ng.datasets.iris()
model = ng.Model(ng.GP("rbf"), "bernoulli")
result = ng.fit(model, sepals, is_virginica, ng.PowerEP(1.0))
figure = result.plot()
"""


def _iris_pictures(result: Result, figure: "Figure") -> list[Picture]:
    _label(figure, ("sepal length, cm", "sepal width, cm"))
    figure.axes[0].legend(["versicolor (0)", "virginica (1)"], loc="lower right", fontsize="small")
    caption = "The probability of Iris virginica (y = 1) against Iris versicolor (y = 0), from the size of the sepals."
    return [Picture(figure, caption), convergence_picture(result)]


def _iris_findings(result: FitResult) -> list[str]:
    right = np.exp(result.leave_one_out()) > 0.5
    length, width = result.parameters["kernel.lengthscale"]
    return [
        f"{np.sum(right)} of {right.size} flowers would be classified correctly from the other {right.size - 1}: the "
        "sepals alone do not tell the two species apart, and the probabilities reflect this.",
        f"The lengthscales are {length:.1f} cm for the length and {width:.3g} cm for the width: it is the length that "
        "tells the species apart.",
    ]


STORIES = (
    Story(
        "Motorcycle: noise that changes",
        (
            "133 measurements of the acceleration of the head in the 58 ms after a simulated motorcycle crash. There "
            "is hardly any noise at first and a lot of it later, so the mean and the logarithm of the noise are two "
            "Gaussian processes in time. Both are state space models, so the cost grows linearly with the "
            "number of rows.",
        ),
        _MOTORCYCLE,
        _motorcycle_pictures,
        _motorcycle_findings,
    ),
    Story(
        "Coal mines: counts over time",
        (
            "Explosions in British coal mines that killed ten people or more, counted in the 110 years from 1852 to "
            "1961. Counts are Poisson, and the logarithm of their rate is a Gaussian process in time.",
        ),
        _COAL,
        _coal_pictures,
        _coal_findings,
    ),
    Story(
        "Iris: two classes",
        (
            "100 flowers of two species of iris, with the length and the width of a sepal. The probability of a "
            "species is a function of both, modelled by a Gaussian process. The method is expectation propagation, "
            "which is usually the most accurate for class probabilities.",
        ),
        _IRIS,
        _iris_pictures,
        _iris_findings,
    ),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo; the exit code is 0 if it succeeded."""
    parser = argparse.ArgumentParser(description="Fit three data sets, and write a report with figures and tables.")
    parser.add_argument("--out", default="demo", metavar="DIR", help="where to write the folder report (default: demo)")
    try:
        run(parser.parse_args(arguments).out)
    except (ImportError, OSError, ValueError) as problem:
        print(f"demo: {problem}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
