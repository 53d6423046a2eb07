"""Every method on three data sets; writes the tables of docs/methods.md.

python docs/scripts/methods_table.py            # runs everything and rewrites the tables
python docs/scripts/methods_table.py --print    # only prints them
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import newtongp as ng

PAGE = Path(__file__).resolve().parent.parent / "methods.md"
BEGIN, END = "<!-- tables: begin -->", "<!-- tables: end -->"
MAX_STEPS = 500

METHODS = {
    "newton": "ng.Newton()",
    "newton heuristic": "ng.Newton(safeguard=ng.Heuristic())",
    "newton riemannian": "ng.Newton(safeguard=ng.Riemannian())",
    "gauss-newton": "ng.Newton(curvature=ng.GaussNewton())",
    "quasi-newton": "ng.Newton(curvature=ng.QuasiNewton())",
    "taylor": "ng.Taylor()",
    "vi": "ng.VI()",
    "vi heuristic": "ng.VI(safeguard=ng.Heuristic())",
    "vi riemannian": "ng.VI(safeguard=ng.Riemannian())",
    "vi gauss-newton": "ng.VI(curvature=ng.GaussNewton())",
    "vi quasi-newton": "ng.VI(curvature=ng.QuasiNewton())",
    "ep": "ng.PowerEP(1.0)",
    "power ep": "ng.PowerEP(0.5)",
    "power ep heuristic": "ng.PowerEP(0.5, safeguard=ng.Heuristic())",
    "power ep riemannian": "ng.PowerEP(0.5, safeguard=ng.Riemannian())",
    "power ep gauss-newton": "ng.PowerEP(0.5, curvature=ng.GaussNewton())",
    "power ep quasi-newton": "ng.PowerEP(0.5, curvature=ng.QuasiNewton())",
    "pl": "ng.PosteriorLinearisation()",
    "pl regression": 'ng.PosteriorLinearisation(slope="regression")',
    "pl quasi-newton": "ng.PosteriorLinearisation(curvature=ng.QuasiNewton())",
    "pl2": "ng.PosteriorLinearisation(order=2)",
    "pl2 heuristic": "ng.PosteriorLinearisation(order=2, safeguard=ng.Heuristic())",
    "pl2 riemannian": "ng.PosteriorLinearisation(order=2, safeguard=ng.Riemannian())",
    "pl2 gauss-newton": "ng.PosteriorLinearisation(order=2, curvature=ng.GaussNewton())",
    "pl2 quasi-newton": "ng.PosteriorLinearisation(order=2, curvature=ng.QuasiNewton())",
    "first-order vi": "ng.FirstOrderVI()",
}
"""Each method's name and how it is written."""


class Problem(NamedTuple):
    """A model with rows to learn from and rows held out."""

    title: str
    about: str
    model: ng.Model
    x: np.ndarray
    y: np.ndarray
    held_out_x: np.ndarray
    held_out_y: np.ndarray


class Row(NamedTuple):
    """One method on one data set; `refusal` says why there are no numbers."""

    name: str
    energy: float = np.nan
    nlpd: float = np.nan
    steps: int = 0
    status: str = ""
    residual: float = np.nan
    refusal: str = ""


def problems() -> list[Problem]:
    """Classification, counts and robust regression."""
    return [classification(), counts(), robust_regression()]


def classification(rows: int = 240) -> Problem:
    """Two bent clouds on the plane, with some labels wrong."""
    rng = np.random.default_rng(0)
    label = rng.integers(0, 2, size=rows)
    angle = rng.uniform(0.0, np.pi, size=rows)
    upper = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    lower = np.stack([1.0 - np.cos(angle), 0.4 - np.sin(angle)], axis=1)
    x = np.where(label[:, None] == 1, upper, lower) + 0.3 * rng.normal(size=(rows, 2))
    wrong = rng.random(rows) < 0.03
    model = ng.Model(ng.GP(ng.kernels.RBF(variance=4.0, lengthscale=0.8)), ng.likelihoods.Bernoulli())
    about = "Two bent clouds in the plane, simulated, 3 % of the labels wrong; `Bernoulli()`, `RBF`."
    return _split("Classification", about, model, x, (label ^ wrong).astype(float))


def counts(rows: int = 160) -> Problem:
    """Poisson counts, mostly small, from a wave in time."""
    rng = np.random.default_rng(1)
    x = np.sort(rng.uniform(0.0, 10.0, size=rows))
    y = rng.poisson(np.exp(0.5 + 1.5 * np.sin(1.3 * x) + 0.1 * x)).astype(float)
    model = ng.Model(ng.GP(ng.kernels.Matern52(variance=2.0, lengthscale=1.5)), ng.likelihoods.Poisson())
    about = "Counts from 0 to 18 along a wave, simulated; `Poisson()`, `Matern52`."
    return _split("Counts", about, model, x, y)


def robust_regression() -> Problem:
    """The motorcycle data, standardised, with Student-t noise."""
    x, y = ng.datasets.motorcycle()
    x, y = (x - x.mean()) / x.std(), (y - y.mean()) / y.std()
    likelihood = ng.likelihoods.StudentT(df=4.0, scale=0.3)
    model = ng.Model(ng.GP(ng.kernels.Matern52(lengthscale=0.5)), likelihood)
    about = "`ng.datasets.motorcycle()`, standardised; `StudentT(df=4.0, scale=0.3)`, `Matern52`."
    return _split("Robust regression", about, model, x, y)


def _split(title: str, about: str, model: ng.Model, x: np.ndarray, y: np.ndarray) -> Problem:
    """Every fourth row is held out."""
    held_out = np.arange(len(y)) % 4 == 1
    size = f"{np.sum(~held_out)} rows, {np.sum(held_out)} held out."
    return Problem(title, f"{about} {size}", model, x[~held_out], y[~held_out], x[held_out], y[held_out])


def method_of(name: str) -> Any:
    """The method of this name, made from the text that the table shows."""
    return eval(METHODS[name], {"ng": ng})


def run(name: str, problem: Problem, max_steps: int = MAX_STEPS) -> Row:
    """One method on one data set, with its default step."""
    try:
        result = ng.infer(problem.model, problem.x, problem.y, method=method_of(name), max_steps=max_steps, throw=False)
    except ValueError as refused:
        return Row(name, refusal=str(refused))
    nlpd = -float(np.mean(result.log_density(problem.held_out_x, problem.held_out_y)))
    return Row(name, result.energy, nlpd, result.steps, result.status.name.lower(), result.residual)


def table(problem: Problem, rows: Sequence[Row]) -> str:
    """One data set's table, in Markdown."""
    lines = [
        f"### {problem.title}",
        "",
        problem.about,
        "",
        "| method | energy | NLPD | steps | status |",
        "|---|---:|---:|---:|---|",
    ]
    for row in rows:
        if row.refusal:
            lines.append(f"| {row.name} | – | – | – | does not apply: {row.refusal} |")
            continue
        status = row.status if row.status == "converged" else f"{row.status}, residual {row.residual:.1g}"
        lines.append(f"| {row.name} | {row.energy:.3f} | {row.nlpd:.4f} | {row.steps} | {status} |")
    return "\n".join(lines)


def put_between_markers(page: str, tables: str) -> str:
    """The page with new text between its two markers."""
    before, _, rest = page.partition(BEGIN)
    _, found, after = rest.partition(END)
    if not found:
        raise ValueError(f"the page has no {BEGIN} ... {END}")
    return f"{before}{BEGIN}\n\n{tables}\n\n{END}{after}"


def main() -> None:
    """Run all methods on all data sets."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--print", action="store_true", help="print the tables and leave the page as it is")
    given = options.parse_args()
    tables = []
    for problem in problems():
        rows = []
        for name in METHODS:
            rows.append(run(name, problem))
            print(problem.title, *rows[-1], file=sys.stderr, flush=True)
        tables.append(table(problem, rows))
    text = "\n\n".join(tables)
    if given.print:
        print(text)
        return
    PAGE.write_text(put_between_markers(PAGE.read_text(encoding="utf-8"), text), encoding="utf-8")
    print(f"wrote {PAGE}")


if __name__ == "__main__":
    main()
