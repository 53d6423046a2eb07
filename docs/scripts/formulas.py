"""Formulas as MathML, made when the site is built: browsers draw them without scripts and without a network.

`$...$` and `$$...$$` are marked by pymdownx.arithmatex, and converted by latex2mathml.
"""

import html
import re
from typing import Any

from latex2mathml.converter import convert

_MARKED = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)


def with_formulas(page: str) -> str:
    """The page with every marked formula as MathML.

    >>> with_formulas(r'<p><span class="arithmatex">\\(a &lt; b\\)</span></p>')[:30]
    '<p><math xmlns="http://www.w3.'
    """
    return _MARKED.sub(_converted, page)


def _converted(match: re.Match[str]) -> str:
    display = match.group(1) == "div"
    formula = convert(html.unescape(match.group(2)).strip(), display="block" if display else "inline")
    return f'<div class="formula">{formula}</div>' if display else formula


def on_page_content(content: str, /, **_: Any) -> str:
    """Called by MkDocs for the content of every page."""
    return with_formulas(content)
