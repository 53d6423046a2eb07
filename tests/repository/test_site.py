"""Formulas and diagrams of the site are drawn when it is built."""

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def script(name):
    """A module of docs/scripts, which is not a package."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / "scripts" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_graph_of_rooms_is_drawn():
    diagrams = script("diagrams")
    text = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    (graph,) = re.findall(r"^```mermaid\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    drawn = diagrams.with_diagrams(f'<p>a</p><pre class="mermaid"><code>{graph.replace(">", "&gt;")}</code></pre>')
    edges = diagrams.edges_of(graph)
    assert drawn.startswith("<p>a</p>") and "mermaid" not in drawn
    assert drawn.count('marker-end="url(#arrow)"') == len(edges)
    names = {name for edge in edges for name in edge}
    assert sorted(re.findall(r"<text [^>]*>(.+?)</text>", drawn)) == sorted(names)
    # No two boxes overlap.
    places = [(float(x), float(y)) for x, y in re.findall(r'<rect x="([-.\d]+)" y="([-.\d]+)"', drawn)]
    assert len(places) == len(names)
    for number, (x, y) in enumerate(places):
        assert all(abs(x - a) > 100.0 or abs(y - b) > 28.0 for a, b in places[:number])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("graph LR\na --> b", "begin with"),
        ("graph TD\na -- b", "one --> other"),
        ("graph TD\na --> b\nb --> a", "cycles"),
    ],
)
def test_other_diagrams_are_refused(text, message):
    diagrams = script("diagrams")
    with pytest.raises(ValueError, match=message):
        diagrams.layers_of(diagrams.edges_of(text))


def test_formulas_become_mathml():
    formulas = script("formulas")
    page = (
        r'<p>a <span class="arithmatex">\(a &lt; \lambda_n\)</span> b</p>'
        r'<div class="arithmatex">\[ C = (K^{-1} + \Lambda)^{-1} \]</div>'
    )
    drawn = formulas.with_formulas(page)
    assert drawn.count("<math") == 2 and "arithmatex" not in drawn and "<mo>&#x0003C;</mo>" in drawn
    assert 'display="inline"' in drawn and '<div class="formula"><math' in drawn
    assert formulas.with_formulas("<p>a (b) [c]</p>") == "<p>a (b) [c]</p>"
