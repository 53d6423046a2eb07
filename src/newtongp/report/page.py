"""A page that can be handed on: figures, tables and saved results in one folder, with an `index.html` to open.

The page is plain HTML. It needs no network, no script and no server, only the files beside it.
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
"""In the files, and on the page: screens with more pixels than CSS counts have something to show."""


class Picture(NamedTuple):
    """A figure with a sentence below it: of what was found, or of how good that is and how it `went`."""

    figure: "Figure"
    caption: str
    went: bool = False


class Section(NamedTuple):
    """One result on the page, with whatever is to be said of it.

    `text` and `findings` are sentences of plain text: paragraphs before the figures, and points of a list after them.
    `code` is shown as it is. `summary` is that of the result, made when it is not given.
    """

    title: str
    result: Result
    text: Sequence[str] = ()
    pictures: Sequence[Picture] = ()
    findings: Sequence[str] = ()
    code: str = ""
    summary: "Summary | None" = None


def folder_name(folder: Any) -> str:
    """The name of the folder to write to; ValueError if it is none."""
    name = file_name(folder, "folder", "report", "folder")
    if Path(name).exists() and not Path(name).is_dir():
        raise ValueError(f"folder must be the name of a folder, and {name!r} is a file: choose another name")
    return name


def _check_text(value: Any, name: str) -> None:
    if not isinstance(value, str):
        raise ValueError(f'{name} must be a string, got {value!r}: write {name}="{value}"')


def section_of(result: Result, title: str | None = None) -> Section:
    """A section with the figures that a result can draw of itself; what cannot be drawn is said in a sentence.

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
    drawings = [_prediction_picture, calibration_picture, convergence_picture]
    if _is_binary(result):
        drawings.remove(calibration_picture)  # It says next to nothing of 0 and 1.
    for draw in drawings:
        try:
            pictures.append(draw(result))
        except (NotImplementedError, ValueError) as reason:
            missing.append(f"Not drawn: {reason}.")
    return Section(title or summary.as_dict()["title"], result, missing, pictures, summary=summary)


def _prediction_picture(result: Result) -> Picture:
    return Picture(result.plot(), "The data, and what the model predicts of new ones.")


def calibration_picture(result: Result) -> Picture:
    """Whether the rows are where the others predict them to be, in the size that suits the page."""
    calibration = result.calibration()
    caption = (
        f"Calibration: each of {calibration.rows} rows as predicted from all others. Where predictions are right, bars "
        "and curve keep to the grey bands."
    )
    return Picture(_resized(calibration.plot(), 6.6, 3.1), caption, went=True)


def convergence_picture(result: Result) -> Picture:
    """How the energy fell, in the size that suits the page."""
    words = (
        "The search for hyperparameters" if np.size(getattr(result, "fit_history", ())) else "The steps of inference"
    )
    caption = f"{words}: the energy, and how far it was from where it ended."
    figure = _resized(result.plot_convergence(), 4.4, 3.1)
    figure.axes[0].ticklabel_format(axis="y", useOffset=False)
    for ax in figure.axes:
        ax.set_ylabel(ax.get_ylabel().replace("its last value", "the end"), fontsize="small")
    return Picture(figure, caption, went=True)


def _resized(figure: "Figure", width: float, height: float) -> "Figure":
    """Smaller, and without the title, whose place the caption takes."""
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

    The folder is made if it is not there, and files of the same names in it are replaced. `introduction` are paragraphs
    of plain text above all sections. Figures are closed once they are on the disk.

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
        raise ValueError("sections must have at least one section: there is nothing to report")
    template = _template()
    folder.mkdir(parents=True, exist_ok=True)
    names = _file_names([section.title for section in sections])
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
    """A name for the files of each section, made of its title and unlike all others.

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
    """The page without its contents; an ImportError that says what to install, where Jinja2 is missing."""
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
    """Plain text as HTML, with every % on the line of its number."""
    from markupsafe import Markup, escape

    return escape(sentence).replace(" %", Markup("&nbsp;%"))


def _overview_line(name: str, section: Section) -> dict[str, Any]:
    """What the table of contents says of a section."""
    assert section.summary is not None
    facts = section.summary.as_dict()
    ended = (facts["fit"] or facts["inference"])["status"].replace("_", " ")
    count = "" if facts["rows"] is None else str(facts["rows"]["observed"])
    value = facts["energy"]["value"]
    cells = [facts["title"], count, ended, "not finite" if value is None else f"{value:.2f}"]
    return {"name": name, "title": section.title, "cells": cells}


def _section(folder: Path, name: str, section: Section) -> dict[str, Any]:
    """One section as the template shows it, its files written."""
    assert section.summary is not None
    pictures = [
        _drawn(folder, f"{name}_{number}.png", picture) for number, picture in enumerate(section.pictures, start=1)
    ]
    return {
        "name": name,
        "title": section.title,
        "text": section.text,
        "found": [picture for picture in pictures if not picture["went"]],
        "findings": section.findings,
        "code": section.code.strip(),
        "summary": section.summary._repr_html_(),
        "went": [picture for picture in pictures if picture["went"]],
        **_saved(folder, name, section.result),
    }


def _drawn(folder: Path, file: str, picture: Picture) -> dict[str, Any]:
    figure = picture.figure
    figure.savefig(folder / file, dpi=_DOTS_PER_INCH)
    width, height = (round(float(inches) * _PIXELS_PER_INCH) for inches in figure.get_size_inches())
    _close(figure)
    return {"file": file, "caption": picture.caption, "width": width, "height": height, "went": picture.went}


def _close(figure: "Figure") -> None:
    """Let go of a figure that pyplot may have made."""
    from matplotlib import pyplot

    pyplot.close(figure)


def _saved(folder: Path, name: str, result: Result) -> dict[str, Any]:
    file = f"{name}.ngp"
    try:
        result.save(folder / file)
    except (TypeError, ValueError) as reason:
        return {"file": None, "reason": str(reason)}
    return {"file": file, "reason": None}
