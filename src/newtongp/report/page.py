"""Web pages about results: figures, tables and saved results in one folder, with an `index.html` to open.

The page is plain HTML. It needs no network, no script and no server, only the files in its folder.
"""

import itertools
import re
from collections.abc import Iterable, Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .._runtime.version import __version__
from ..plotting import require_matplotlib
from ..results.result import Result
from ..validation.arguments import file_name

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ..diagnostics.summary import Summary

_DOTS_PER_INCH, _PIXELS_PER_INCH = 144, 96
"""Figures are saved with more dots than they have CSS pixels, for screens of high resolution."""


class Picture(NamedTuple):
    """A figure with its caption; `went` places it below the summary, under "How it went", instead of above."""

    figure: "Figure"
    caption: str
    went: bool = False


class Table(NamedTuple):
    """A table with its title, and perhaps a file in the folder of the page that has all of it."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    file: str | None = None


class Section(NamedTuple):
    """One result on the page.

    `text` and `findings` are sentences of plain text: paragraphs above the figures, and items of a list below them.
    `code` is shown unchanged. `summary` is that of the result, computed if it is not given. `files` is the beginning of
    the names of its files, made from the title if it is not given. `tables` are shown below the figures, with numbers
    in four digits.
    """

    title: str
    result: Result
    text: Sequence[str] = ()
    pictures: Sequence[Picture] = ()
    findings: Sequence[str] = ()
    code: str = ""
    summary: "Summary | None" = None
    files: str | None = None
    tables: Sequence[Table] = ()


def folder_name(folder: Any) -> str:
    """The name of the folder to write to; ValueError if it is not the name of a folder."""
    name = file_name(folder, "folder", "report", "folder")
    if Path(name).exists() and not Path(name).is_dir():
        raise ValueError(f"folder must be the name of a folder, but {name!r} is a file: choose another name")
    return name


def _check_text(value: Any, name: str) -> None:
    if not isinstance(value, str):
        raise ValueError(f'{name} must be a string, got {value!r}: write {name}="{value}"')


def section_of(result: Result, title: str | None = None) -> Section:
    """A section with all figures that can be drawn of a result; for each other figure, a sentence says why not.

    >>> import newtongp as ng
    >>> model = ng.Model(ng.GP(ng.kernels.RBF()), ng.likelihoods.Poisson())
    >>> section = section_of(ng.infer(model, [0.0, 1.0, 2.0], [1, 0, 3]))
    >>> section.title, len(section.pictures)
    ('Inference of GP(RBF) with Poisson by VI', 3)
    """
    require_matplotlib()
    if title is not None:
        _check_text(title, "title")
    summary = result.summary()
    pictures, missing = [], []
    prediction = _terms_picture if summary.terms else _prediction_picture
    drawings = [prediction, calibration_picture, convergence_picture]
    if _is_binary(result):
        drawings.remove(calibration_picture)  # It says almost nothing about values that are 0 or 1.
    for draw in drawings:
        try:
            pictures.append(draw(result))
        except (NotImplementedError, ValueError) as reason:
            missing.append(f"Not drawn: {reason}.")
    return Section(title or summary.as_dict()["title"], result, missing, pictures, summary=summary)


def _prediction_picture(result: Result) -> Picture:
    return Picture(result.plot(), "The data, and the model's predictions of new data.")


def _terms_picture(result: Result) -> Picture:
    return Picture(result.plot_terms(), "Every term of the model, on the scale of the latent, with 95 % intervals.")


def calibration_picture(result: Result) -> Picture:
    """The calibration of leave-one-out predictions, in the size of the page."""
    calibration = result.calibration()
    caption = (
        f"Calibration: each of {calibration.rows} rows is predicted from all others. If the predictions are correct, "
        "bars and curve stay within the grey bands."
    )
    return Picture(_resized(calibration.plot(), 6.6, 3.1), caption, went=True)


def convergence_picture(result: Result) -> Picture:
    """The energy over the steps, in the size of the page."""
    words = (
        "The search for hyperparameters" if np.size(getattr(result, "fit_history", ())) else "The steps of inference"
    )
    caption = f"{words}: the energy, and its distance from the last value."
    figure = _resized(result.plot_convergence(), 4.4, 3.1)
    figure.axes[0].ticklabel_format(axis="y", useOffset=False)
    for ax in figure.axes:
        ax.set_ylabel(ax.get_ylabel().replace("its last value", "the end"), fontsize="small")
    return Picture(figure, caption, went=True)


def _resized(figure: "Figure", width: float, height: float) -> "Figure":
    """The figure in another size and without its title, which the caption replaces."""
    figure.set_size_inches(width, height)
    figure.axes[0].set_title("", loc="left")
    return figure


def _is_binary(result: Result) -> bool:
    support = result.model.likelihood.support
    return support.integer and (support.lower, support.upper) == (0.0, 1.0)


def write_report(
    folder: Any, sections: Iterable[Section], title: str = "newtongp report", introduction: Sequence[str] = ()
) -> Path:
    """Write `index.html` to a folder, with the figures and the saved results that it refers to; returns its path.

    The folder is created if it does not exist, and files with the same names are replaced. `introduction` holds
    paragraphs of plain text above all sections. Figures are closed once they are saved.

    >>> import tempfile
    >>> import newtongp as ng
    >>> model = ng.Model(ng.GP(ng.kernels.RBF()), ng.likelihoods.Poisson())
    >>> result = ng.infer(model, [0.0, 1.0, 2.0], [1, 0, 3])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     page = write_report(folder, [section_of(result, "Counts")])
    ...     sorted(file.name for file in page.parent.iterdir())
    ['counts.ngp', 'counts_1.png', 'counts_2.png', 'counts_3.png', 'index.html']
    """
    require_matplotlib()
    folder, sections = Path(folder_name(folder)), list(sections)
    _check_text(title, "title")
    if not sections:
        raise ValueError("sections must have at least one section, got none")
    template = _template()
    folder.mkdir(parents=True, exist_ok=True)
    names = _file_names([section.files or section.title for section in sections])
    sections = [
        section if section.summary is not None else section._replace(summary=section.result.summary())
        for section in sections
    ]
    named = list(zip(names, sections, strict=True))
    text = template.render(
        title=title,
        introduction=introduction,
        overview=[_overview_line(*entry) for entry in named] if len(named) > 1 else [],
        sections=[_section(folder, *entry) for entry in named],
        style=_beside("page.css"),
        version=__version__,
    )
    page = folder / "index.html"
    page.write_text(text, encoding="utf-8")
    return page


def _file_names(titles: list[str]) -> list[str]:
    """A distinct file name for each section, from its title.

    >>> _file_names(["Coal mines!", "coal mines", "αβγ"])
    ['coal_mines', 'coal_mines_2', 'result']
    """
    names: list[str] = []
    for title in titles:
        name = "_".join(re.findall(r"[a-z0-9]+", title.lower())[:6]) or "result"
        numbered = (f"{name}_{number}" for number in itertools.count(2))
        names.append(next(candidate for candidate in itertools.chain([name], numbered) if candidate not in names))
    return names


# The parts of the page --------------------------------------------------------------------------------


def _template() -> Any:
    """The template of the page; an ImportError that says what to install if Jinja2 is missing."""
    try:
        from jinja2 import Environment, FunctionLoader, StrictUndefined
    except ImportError:
        raise ImportError("reports need Jinja2: pip install 'newtongp[plot]'") from None
    environment = Environment(
        loader=FunctionLoader(_beside), autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined
    )
    environment.filters["words"] = _words
    return environment.get_template("page.html.jinja")


def _beside(name: str) -> str:
    """A file of this package."""
    return resources.files("newtongp.report").joinpath(name).read_text(encoding="utf-8")


def _words(sentence: str) -> Any:
    """Plain text as HTML, with no line break between a number and its % sign."""
    from markupsafe import Markup, escape

    return escape(sentence).replace(" %", Markup("&nbsp;%"))


def _overview_line(name: str, section: Section) -> dict[str, Any]:
    """The line of a section in the table of contents."""
    assert section.summary is not None
    facts = section.summary.as_dict()
    ended = (facts["fit"] or facts["inference"])["status"].replace("_", " ")
    count = "" if facts["rows"] is None else str(facts["rows"]["observed"])
    value = facts["energy"]["value"]
    cells = [facts["title"], count, ended, "not finite" if value is None else f"{value:.2f}"]
    return {"name": name, "title": section.title, "cells": cells}


def _section(folder: Path, name: str, section: Section) -> dict[str, Any]:
    """Write the files of a section, and return its entries in the template."""
    assert section.summary is not None
    pictures = [
        _drawn(folder, f"{name}_{number}.png", picture) for number, picture in enumerate(section.pictures, start=1)
    ]
    return {
        "name": name,
        "title": section.title,
        "text": section.text,
        "found": [picture for picture in pictures if not picture["went"]],
        "tables": [_table(table) for table in section.tables],
        "findings": section.findings,
        "code": section.code.strip(),
        "summary": section.summary._repr_html_(),
        "went": [picture for picture in pictures if picture["went"]],
        **_saved(folder, name, section.result),
    }


def _table(table: Table) -> dict[str, Any]:
    rows = [[_cell(value) for value in row] for row in table.rows]
    return {**table._asdict(), "rows": rows}


def _cell(value: Any) -> str:
    """A value in a table.

    >>> [_cell(value) for value in (3.14159, 123456.7, 1e-7, 12, "a")]
    ['3.142', '123457', '1e-07', '12', 'a']
    """
    if not isinstance(value, (float, np.floating)):
        return str(value)
    return f"{value:.0f}" if abs(value) >= 1e4 else f"{value:.4g}"


def _drawn(folder: Path, file: str, picture: Picture) -> dict[str, Any]:
    figure = picture.figure
    figure.savefig(folder / file, dpi=_DOTS_PER_INCH)
    width, height = (round(float(inches) * _PIXELS_PER_INCH) for inches in figure.get_size_inches())
    _close(figure)
    return {"file": file, "caption": picture.caption, "width": width, "height": height, "went": picture.went}


def _close(figure: "Figure") -> None:
    """Close a figure that pyplot may have created."""
    from matplotlib import pyplot

    pyplot.close(figure)


def _saved(folder: Path, name: str, result: Result) -> dict[str, Any]:
    file = f"{name}.ngp"
    try:
        result.save(folder / file)
    except (TypeError, ValueError) as reason:
        return {"file": None, "reason": str(reason)}
    return {"file": file, "reason": None}
