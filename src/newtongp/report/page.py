"""A page that can be handed on: figures, tables and saved results in one folder, with an `index.html` to open.

The page is plain HTML. It needs no network, no script and no server, only the files beside it.
"""

import html
import itertools
import re
from collections.abc import Iterable, Sequence
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
    folder.mkdir(parents=True, exist_ok=True)
    names = _file_names([section.title for section in sections])
    sections = [
        section if section.summary is not None else section._replace(summary=section.result.summary())
        for section in sections
    ]
    bodies = [_section(folder, name, section) for name, section in zip(names, sections, strict=True)]
    if len(sections) > 1:
        bodies.insert(0, _overview(names, sections))
    page = folder / "index.html"
    page.write_text(_page(title, introduction, bodies), encoding="utf-8")
    return page


def _file_names(titles: list[str]) -> list[str]:
    """A name for the files of each section, made of its title and unlike all others.

    >>> _file_names(["Coal mines!", "coal mines", "αβγ"])
    ['coal_mines', 'coal_mines_2', 'result']
    """
    found: list[str] = []
    for title in titles:
        name = "_".join(re.findall(r"[a-z0-9]+", title.lower())[:6]) or "result"
        numbered = (f"{name}_{number}" for number in itertools.count(2))
        found.append(next(each for each in itertools.chain([name], numbered) if each not in found))
    return found


# The parts of the page --------------------------------------------------------------------------------


def _page(title: str, introduction: Sequence[str], bodies: list[str]) -> str:
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{html.escape(title)}</title>
<link rel="icon" href="data:,">
<style>{_STYLE}</style>
</head>
<body>
<header>
<h1>{html.escape(title)}</h1>
{_paragraphs(introduction)}
</header>
<main>
{"".join(bodies)}
</main>
<footer>Written by newtongp {html.escape(__version__)}.</footer>
</body>
</html>
"""


def _overview(names: list[str], sections: list[Section]) -> str:
    """A table with a line a section, as a table of contents."""
    rows = []
    for name, section in zip(names, sections, strict=True):
        assert section.summary is not None
        facts = section.summary.as_dict()
        ended = (facts["fit"] or facts["inference"])["status"].replace("_", " ")
        count = "" if facts["rows"] is None else str(facts["rows"]["observed"])
        link = f'<a href="#{name}">{html.escape(section.title)}</a>'
        value = facts["energy"]["value"]
        cells = [html.escape(facts["title"]), count, ended, "not finite" if value is None else f"{value:.2f}"]
        rows.append(f"<tr><td>{link}</td>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>")
    heading = "".join(f"<th>{word}</th>" for word in ("", "model and method", "rows", "ended", "energy"))
    return f'<div class="overview"><table><tr>{heading}</tr>{"".join(rows)}</table></div>\n'


def _section(folder: Path, name: str, section: Section) -> str:
    """One section as HTML, its files written."""
    pictures = [
        _figure(folder, f"{name}_{number}.png", picture) for number, picture in enumerate(section.pictures, start=1)
    ]
    found = [text for text, picture in zip(pictures, section.pictures, strict=True) if not picture.went]
    went = [text for text, picture in zip(pictures, section.pictures, strict=True) if picture.went]
    parts = [f'<section id="{name}">', f"<h2>{html.escape(section.title)}</h2>", _paragraphs(section.text), *found]
    if section.findings:
        points = "".join(f"<li>{_words(sentence)}</li>" for sentence in section.findings)
        parts.append(f'<h3>What was found</h3>\n<ul class="findings">{points}</ul>')
    if section.code:
        parts.append(
            f"<h3>The same in your own program</h3>\n<pre><code>{html.escape(section.code.strip())}</code></pre>"
        )
    assert section.summary is not None
    parts.append(f'<h3>Summary</h3>\n<div class="summary">{section.summary._repr_html_()}</div>')
    if went:
        parts.append(f'<h3>How it went</h3>\n<div class="row">{"".join(went)}</div>')
    parts += [_saved(folder, name, section.result), "</section>\n"]
    return "\n".join(part for part in parts if part)


def _paragraphs(sentences: Sequence[str]) -> str:
    return "\n".join(f"<p>{_words(sentence)}</p>" for sentence in sentences)


def _words(sentence: str) -> str:
    """Plain text as HTML, with every % on the line of its number."""
    return html.escape(sentence).replace(" %", "&nbsp;%")


def _figure(folder: Path, file: str, picture: Picture) -> str:
    figure = picture.figure
    figure.savefig(folder / file, dpi=_DOTS_PER_INCH)
    width, height = (round(float(inches) * _PIXELS_PER_INCH) for inches in figure.get_size_inches())
    _close(figure)
    caption = html.escape(picture.caption)
    image = f'<img src="{file}" alt="{caption}" width="{width}" height="{height}">'
    return f'<figure style="flex: {width} 1 0">{image}<figcaption>{_words(picture.caption)}</figcaption></figure>\n'


def _close(figure: "Figure") -> None:
    """Let go of a figure that pyplot may have made."""
    from matplotlib import pyplot

    pyplot.close(figure)


def _saved(folder: Path, name: str, result: Result) -> str:
    file = f"{name}.ngp"
    try:
        result.save(folder / file)
    except (TypeError, ValueError) as reason:
        return f'<p class="saved">The result could not be saved: {html.escape(str(reason))}.</p>'
    return (
        f'<p class="saved">The result, with its model and data, is in <a href="{file}" download>{file}</a>: '
        f"<code>ng.load(&quot;{file}&quot;)</code> has it again.</p>"
    )


_STYLE = """
:root { --ink: #1d2b36; --soft: #5c6b77; --line: #dfe5e9; --tint: #f4f7f9; --accent: #013a63; --warm: #fff6e5; }
* { box-sizing: border-box; }
html { scroll-behavior: smooth; }
body { margin: 0 auto; max-width: 62rem; padding: 0 1.5rem 3rem; color: var(--ink); background: #fff;
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", "DejaVu Sans", Arial, sans-serif; }
header { padding: 2.5rem 0 0.5rem; }
h1 { font-size: 2rem; line-height: 1.2; margin: 0 0 0.75rem; color: var(--accent); letter-spacing: -0.01em; }
h2 { font-size: 1.45rem; margin: 0 0 0.5rem; color: var(--accent); letter-spacing: -0.01em; }
h3 { font-size: 0.8rem; margin: 1.75rem 0 0.5rem; color: var(--soft); text-transform: uppercase;
  letter-spacing: 0.08em; }
p { margin: 0.5rem 0; max-width: 46rem; }
a { color: #1b6ca8; text-decoration-thickness: 1px; text-underline-offset: 2px; }
section { margin-top: 2.5rem; padding-top: 2rem; border-top: 1px solid var(--line); }
figure { margin: 1.25rem 0 0.5rem; }
figure img { display: block; max-width: 100%; height: auto; }
figcaption { color: var(--soft); font-size: 0.875rem; margin-top: 0.4rem; }
.row { display: flex; gap: 0.5rem 1.75rem; }
.row figure { margin-top: 0.25rem; }
@media (max-width: 44rem) { .row { flex-direction: column; } }
.findings { margin: 0; padding-left: 1.1rem; max-width: 46rem; }
.findings li { margin: 0.3rem 0; }
pre { background: var(--tint); border: 1px solid var(--line); border-radius: 6px; padding: 0.9rem 1.1rem;
  overflow-x: auto; margin: 0; font-size: 0.875rem; line-height: 1.6; }
code { font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; }
p code { background: var(--tint); border-radius: 4px; padding: 0.1rem 0.3rem; font-size: 0.875em; }
table { border-collapse: collapse; font-size: 0.9rem; font-variant-numeric: tabular-nums; }
th { text-align: left; color: var(--soft); font-weight: 600; border-bottom: 1px solid #b9c4cc; }
th, td { padding: 0.3rem 1.25rem 0.3rem 0; vertical-align: top; }
tr + tr > td { border-top: 1px solid var(--line); }
.overview, .summary { overflow-x: auto; }
.overview { margin-top: 1rem; }
.overview td:first-child { white-space: nowrap; }
.overview th:nth-child(n+3), .overview td:nth-child(3), .overview td:nth-child(5) { text-align: right; }
.overview td:nth-child(4), .overview th:nth-child(4) { text-align: left; }
.summary > p { margin: 0 0 0.5rem; }
.summary table { margin: 0 0 1rem; }
.summary table:first-of-type td { border: 0; padding-top: 0.1rem; padding-bottom: 0.1rem; }
.summary table:first-of-type td:first-child { color: var(--soft); }
.summary table + table :is(th, td):is(:nth-child(2), :nth-child(3)) { text-align: right; }
.summary ul { list-style: none; margin: 0; padding: 0; max-width: 50rem; }
.summary li { background: var(--warm); border-left: 3px solid #e0a030; padding: 0.45rem 0.8rem; margin: 0.4rem 0;
  font-size: 0.9rem; }
.saved { margin-top: 1.5rem; color: var(--soft); font-size: 0.9rem; }
footer { margin-top: 3rem; padding-top: 1rem; border-top: 1px solid var(--line); color: var(--soft);
  font-size: 0.875rem; }
@media print { body { max-width: none; } figure, pre, table { break-inside: avoid; } }
"""
