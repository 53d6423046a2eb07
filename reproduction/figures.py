"""The figures of `sec:experiments`: curves of loss and test scores, and an example of each case study's posterior."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from newtongp import datasets
from newtongp.prediction.predict import Prediction

from . import runner
from .cases import GPRN_REMOVED
from .catalogue import FAMILIES, PUBLISHED, Entry
from .study import Outcome, Study, published_curves

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLOURS = {
    "heuristic": "#777777",
    "Riemannian": "#e08a00",
    "Gauss-Newton": "#0f8fb3",
    "quasi-Newton": "#c8102e",
    "first-order": "#3a9d3a",
    "PL": "#6a3d9a",
    "PL quasi-Newton": "#e377c2",
}
_DATA = "#333333"
_EXAMPLES = ("heuristic VI", "variational Gauss-Newton", "variational quasi-Newton")


def _colour(entry: Entry) -> str:
    plain = entry.name.removesuffix(PUBLISHED)
    if plain in ("PL", "PL quasi-Newton"):
        return _COLOURS[plain]
    return next(colour for kind, colour in _COLOURS.items() if kind in plain)


def draw(study: Study, folder: Path) -> list[Path]:
    """Both figures of the case study, as PNG and PDF."""
    made = {f"{study.case.name}_results": results(study)}
    example = {"motorcycle": heteroscedastic_example, "product": product_example, "gprn": network_example}
    picture = example[study.case.name](study)
    if picture is not None:
        made[f"{study.case.name}_plot"] = picture
    paths = []
    for name, figure in made.items():
        for ending in ("png", "pdf"):
            paths.append(folder / f"{name}.{ending}")
            figure.savefig(paths[-1], dpi=150)
    return paths


def _figure(width: float, height: float) -> "Figure":
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


# Curves: fig:hsced-results, fig:product-results, fig:gprn-results ----------------------------------------


def results(study: Study) -> "Figure":
    """One row a family, one column a score; the published curves, where there are any, pale behind ours."""
    families = [family for family in FAMILIES if any(o.entry.family == family for o in study.outcomes)]
    scores = {"loss": "training loss", "nlpd": "test NLPD"}
    if study.case.density_floor > 0.0:
        scores["sound_nlpd"] = "test NLPD, weights integrated out"
    if study.case.truth_is is not None:
        scores["rmse"] = "RMSE against the truth"
    figure = _figure(4.6 * len(scores) + 2.4, 2.7 * len(families) + 0.4)
    axes = figure.subplots(len(families), len(scores), squeeze=False)
    curves = published_curves(study.case.name)
    for row, family in zip(axes, families, strict=True):
        outcomes = [outcome for outcome in study.outcomes if outcome.entry.family == family]
        for ax, (score, title) in zip(row, scores.items(), strict=True):
            _curves(ax, outcomes, score, curves)
            if family == "VI" and score == "loss":
                _mark_optimum(ax, study)
            ax.set_title(title if family == families[0] else "", loc="left")
        row[0].set_ylabel(FAMILIES[family])
        row[-1].legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), frameon=False, fontsize="small")
    for ax in axes[-1]:
        ax.set_xlabel("iteration")
    names = [study.case.splits[k].name for k in study.chosen]
    splits = f"mean of {len(names)} splits" if len(names) > 1 else names[0]
    behind = "; published curves wide and pale behind ours" if curves else ""
    figure.suptitle(f"{study.case.title}: {splits}{behind}", x=0.01, ha="left")
    return figure


def _curves(ax: "Axes", outcomes: list[Outcome], score: str, curves: dict[str, Any]) -> None:
    names = {"loss": "training_loss", "nlpd": "test_nlpd", "rmse": "truth_rmse"}
    every = []
    for outcome in outcomes:
        entry = outcome.entry
        curve = curves.get(entry.curve or entry.name)
        has_own = any(other.entry.curve == entry.name for other in outcomes)
        if curve is not None and score in names and not has_own:
            at = np.array(curve["iteration"]) - 1
            ax.plot(at, curve[names[score]], color=_colour(entry), linewidth=6.0, alpha=0.28, zorder=1)
        values = getattr(outcome.mean, score)
        style = (0, (5, 2)) if entry.as_published else "-"
        ax.plot(outcome.iteration - 1, values, color=_colour(entry), linewidth=1.4, linestyle=style, label=entry.name)
        every.append(values)
    _limit(ax, every, farthest=12.0 if score == "rmse" else 4.0)
    _name_what_is_above(ax, outcomes, score)
    ax.set_xlim(0, outcomes[0].iteration[-1] - 1 or 1)
    ax.spines[["top", "right"]].set_visible(False)


def _limit(ax: "Axes", every: list[np.ndarray], farthest: float) -> None:
    """Where curves settle has to be visible, not only where they come from.

    A curve that ends more than `farthest` times as high above the lowest point as the median curve may be cut off.
    """
    finite = [column[np.isfinite(column)] for column in every if np.any(np.isfinite(column))]
    if not finite:
        return
    low = min(float(column.min()) for column in finite)
    ends = np.array([float(column[-1]) for column in finite])
    # Methods that end far from all others would flatten them: they may leave the picture.
    settled = ends[ends - low <= farthest * (np.median(ends) - low)].max(initial=ends.min())
    early = np.median([float(column[min(2, len(column) - 1)]) for column in finite])
    high = max(settled, min(early, low + 3.0 * (settled - low) if settled > low else early))
    room = high - low or max(1.0, abs(low))
    ax.set_ylim(low - 0.06 * room, high + 0.25 * room)


def _name_what_is_above(ax: "Axes", outcomes: list[Outcome], score: str) -> None:
    """Methods that end above the picture, with where they end."""
    top = ax.get_ylim()[1]
    ends = [(outcome.entry, float(getattr(outcome.mean, score)[-1])) for outcome in outcomes]
    for rank, (entry, end) in enumerate((entry, end) for entry, end in ends if end > top):
        ax.text(
            0.99,
            0.98 - 0.09 * rank,
            f"↑ {entry.name}: ends at {end:.4g}",
            transform=ax.transAxes,
            ha="right",
            va="top",
            fontsize="x-small",
            color=_colour(entry),
        )


def _mark_optimum(ax: "Axes", study: Study) -> None:
    exact = study.defaults.get("exact VI, backtracking")
    if exact is None:
        return
    energy = float(np.mean([ending.energy for ending in exact]))
    steps = max(ending.steps for ending in exact)
    label = f"exact VI, backtracking: {energy:.2f} in at most {steps} steps"
    line = ax.axhline(energy, color="black", linewidth=1.2, linestyle=":", zorder=3, label=label)
    low, high = ax.get_ylim()
    ax.set_ylim(min(low, energy - 0.06 * (high - low)), high)
    ax.legend(handles=[line], loc="center right", fontsize="x-small", framealpha=0.8, edgecolor="none")


# fig:hsced-plot -----------------------------------------------------------------------------------------


def _examples(study: Study, names: tuple[str, ...]) -> dict[str, Outcome]:
    by_name = {outcome.entry.name: outcome for outcome in study.outcomes}
    return {name: by_name[name] for name in names if name in by_name}


def _band(ax: "Axes", x: np.ndarray, mean: np.ndarray, deviation: np.ndarray, colour: str, label: str) -> None:
    ax.plot(x, mean, color=colour, linewidth=1.5, label=label)
    low, high = mean - 1.96 * deviation, mean + 1.96 * deviation
    ax.fill_between(x, low, high, color=colour, alpha=0.08, linewidth=0)
    for end in (low, high):
        ax.plot(x, end, color=colour, linewidth=0.7, alpha=0.8)


def heteroscedastic_example(study: Study) -> "Figure | None":
    """The posterior of the first fold, and the covariance of f₁ and f₂ at four times (`fig:hsced-plot`)."""
    shown = _examples(study, _EXAMPLES)
    if not shown:
        return None
    times, accelerations = datasets.motorcycle()
    split = study.case.splits[study.chosen[0]]
    fold = runner.make_fold(study.case, split)
    grid = np.linspace(-1.75, 2.6, 300)
    marked = np.array([-0.9, -0.35, 0.35, 1.2])
    figure = _figure(11.0, 7.2)
    parts: Any = figure.subfigures(2, 1, height_ratios=[1.5, 1.0])
    above, below = parts
    ax = above.subplots()
    small = below.subplots(1, len(marked))

    def to_times(x):
        return times.mean() + times.std() * x

    def to_accelerations(y):
        return accelerations.mean() + accelerations.std() * y

    for name, outcome in shown.items():
        colour = _colour(outcome.entry)
        sites = outcome.runs[0].sites
        latent = runner.predict(study.case, fold, sites, np.concatenate([grid, marked]))
        mean, covariance = np.asarray(latent.mean), np.asarray(latent.covariance)
        noise = np.logaddexp(0.0, mean[:, 1])
        spread = np.sqrt(covariance[:, 0, 0] + noise**2)[: len(grid)]
        _band(ax, to_times(grid), to_accelerations(mean[: len(grid), 0]), accelerations.std() * spread, colour, name)
        for panel, at in zip(small, range(len(grid), len(grid) + len(marked)), strict=True):
            _contours(panel, mean[at], covariance[at], colour)
    for chosen, word, marker in ((split.train, "training rows", "o"), (split.test, "test rows", "x")):
        rows = chosen[:, 0]
        ax.plot(
            to_times(split.x[rows]), to_accelerations(split.y[rows, 0]), marker, color=_DATA, markersize=3.5, label=word
        )
    for panel, time in zip(small, to_times(marked), strict=True):
        ax.axvline(time, color=_DATA, linewidth=0.8, linestyle=(0, (2, 2)))
        panel.set_title(f"{time:.0f} ms", fontsize="medium")
        panel.set_xlabel("$f_1$")
        panel.tick_params(labelsize="x-small")
    small[0].set_ylabel("$f_2$")
    ax.set_xlim(to_times(grid[0]), to_times(grid[-1]))
    ax.set_xlabel("time after impact, ms")
    ax.set_ylabel("acceleration, g")
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(frameon=False, ncols=2, loc="lower right")
    above.suptitle(f"Heteroscedastic noise, {split.name}: means and 95 % of y", x=0.01, ha="left")
    below.suptitle("Posterior of $f_1$ and $f_2$ at the marked times", x=0.01, ha="left")
    return figure


def _contours(ax: "Axes", mean: np.ndarray, covariance: np.ndarray, colour: str) -> None:
    """Ellipses of one and two standard deviations."""
    angle = np.linspace(0.0, 2.0 * np.pi, 200)
    first = np.sqrt(covariance[0, 0])
    cross = covariance[0, 1] / first
    second = np.sqrt(max(covariance[1, 1] - cross**2, 0.0))
    for size in (1.0, 2.0):
        x = mean[0] + size * first * np.cos(angle)
        y = mean[1] + size * (cross * np.cos(angle) + second * np.sin(angle))
        ax.plot(x, y, color=colour, linewidth=1.4)


# fig:product-plot ---------------------------------------------------------------------------------------

_SEGMENT = (60.0, 100.0)


def product_example(study: Study) -> "Figure | None":
    """A short segment of the signal, its oscillation and its amplitude (`fig:product-plot`)."""
    shown = _examples(study, _EXAMPLES[:2])
    split = study.case.splits[study.chosen[0]]
    if not shown or split.truth is None:
        return None
    part = (split.x >= _SEGMENT[0]) & (split.x <= _SEGMENT[1])
    x, truth = split.x[part], split.truth[part]
    amplitude = np.logaddexp(0.0, truth[:, 1])
    figure = _figure(11.0, 7.5)
    signal, oscillation, envelope = figure.subplots(3, 1, sharex=True)
    for chosen, word, marker in ((split.train, "training rows", "o"), (split.test, "test rows", "x")):
        rows = part & chosen[:, 0]
        signal.plot(split.x[rows], split.y[rows, 0], marker, color=_DATA, markersize=3.0, label=word)
    signal.plot(x, truth[:, 0] * amplitude, color="black", linewidth=1.0, label="truth")
    oscillation.plot(x, truth[:, 0], color="black", linewidth=1.0, linestyle="--", label="truth")
    envelope.plot(x, amplitude, color="black", linewidth=1.0, linestyle="--", label="truth")
    for name, outcome in shown.items():
        marginals, colour = outcome.runs[0].marginals, _colour(outcome.entry)
        mean, deviation = marginals.mean[part], np.sqrt(marginals.variance[part])
        _band(oscillation, x, mean[:, 0], deviation[:, 0], colour, name)
        ends = [np.logaddexp(0.0, mean[:, 1] + sign * 1.96 * deviation[:, 1]) for sign in (-1.0, 1.0)]
        envelope.plot(x, np.logaddexp(0.0, mean[:, 1]), color=colour, linewidth=1.5, label=name)
        envelope.fill_between(x, *ends, color=colour, alpha=0.12, linewidth=0)
    for ax, title in (
        (signal, "signal"),
        (oscillation, "oscillation $f_1$, mean and 95 %"),
        (envelope, "amplitude softplus($f_2$), median and 95 %"),
    ):
        ax.set_title(title, loc="left")
        ax.spines[["top", "right"]].set_visible(False)
        ax.legend(frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    envelope.set_xlabel("input")
    envelope.set_xlim(*_SEGMENT)
    figure.suptitle(f"Amplitude demodulation, {split.name}", x=0.01, ha="left")
    return figure


# fig:gprn-plot ------------------------------------------------------------------------------------------

_OUTPUTS = ("#0f8fb3", "#c8102e", "#3a7d2c")


def network_example(study: Study) -> "Figure | None":
    """Predictions of the three outputs, two of them with their middle third removed (`fig:gprn-plot`)."""
    shown = _examples(study, ("variational Gauss-Newton", "heuristic VI"))
    split = study.case.splits[study.chosen[0]]
    if not shown or split.truth is None:
        return None
    figure = _figure(11.0, 3.6 * len(shown) + 0.3)
    panels = figure.subplots(len(shown), 1, sharex=True, squeeze=False)[:, 0]
    removed = split.x[GPRN_REMOVED]
    for ax, (name, outcome) in zip(panels, shown.items(), strict=True):
        prediction = Prediction(study.case.model.likelihood, outcome.runs[0].marginals, None)
        mean, deviation = prediction.mean, prediction.std
        ax.axvspan(removed[0], removed[-1], color="0.93", linewidth=0, label="outputs 2 and 3 removed")
        for output, colour in enumerate(_OUTPUTS):
            _band(ax, split.x, mean[:, output], deviation[:, output], colour, f"output {output + 1}, mean and 95 %")
            ax.plot(split.x, split.truth[:, output], color=colour, linewidth=1.0, linestyle="--")
            rows = split.train[:, output]
            ax.plot(split.x[rows], split.y[rows, output], ".", color=colour, markersize=2.0, alpha=0.7)
        low, high = split.truth.min(), split.truth.max()
        ax.set_ylim(low - 0.4 * (high - low), high + 0.4 * (high - low))
        ax.set_title(f"{name} (dashed: the truth)", loc="left")
        ax.spines[["top", "right"]].set_visible(False)
    panels[0].legend(frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    panels[-1].set_xlabel("input")
    panels[-1].set_xlim(split.x[0], split.x[-1])
    figure.suptitle(f"Regression network, {split.name}", x=0.01, ha="left")
    return figure
