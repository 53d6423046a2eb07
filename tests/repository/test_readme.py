"""The Python blocks of the README and of the pages that promise it run from top to bottom."""

import re
import shutil
from pathlib import Path

import pytest

import newtongp as ng

pyplot = pytest.importorskip("matplotlib.pyplot")

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COUNTS = "time,count\n0.0,3\n1.0,5\n2.5,\n3.0,9\n4.0,6\n5.0,2\n6.5,0\n7.0,1\n8.0,4\n9.0,7\n10.0,8\n"


def python_blocks(text):
    """The code of every fenced Python block, with the line of the page that it starts on."""
    return [(text.count("\n", 0, match.start(1)), match.group(1)) for match in BLOCK.finditer(text)]


PAGES = [
    "README.md",
    "docs/tutorial.md",
    "docs/tables.md",
    "docs/fitting.md",
    "docs/forecasting.md",
    "docs/sparse.md",
    "docs/saving.md",
    "docs/jax.md",
    "docs/extending.md",
]
MORE_PAGES = [
    "docs/index.md",
    "docs/choosing.md",
    "docs/coming_from.md",
    "docs/time.md",
    "docs/linear.md",
    "docs/space_time.md",
    "docs/scaling.md",
    "docs/latents.md",
    "docs/checking.md",
    "docs/sklearn.md",
    "docs/gallery.md",
]
"""Most of a page's time is compilation: these run with the thorough tests."""


@pytest.mark.slow
@pytest.mark.parametrize("page", [*PAGES, *(pytest.param(page, marks=pytest.mark.thorough) for page in MORE_PAGES)])
def test_examples_run(page, tmp_path, monkeypatch):
    path = ROOT / page
    monkeypatch.chdir(tmp_path)  # where pages may write, and read what they promise to
    (tmp_path / "counts.csv").write_text(COUNTS, encoding="utf-8")
    for file in ("docs/assets/bakery.csv", "tests/data/air_passengers.csv"):
        shutil.copy(ROOT / file, tmp_path)
    blocks = python_blocks(path.read_text(encoding="utf-8"))
    assert blocks, f"{page} has no Python block"
    namespace = {"__name__": "example"}
    for line, code in blocks:
        # The empty lines make a traceback show the line of the page.
        exec(compile("\n" * line + code, str(path), "exec"), namespace)
    pyplot.close("all")
    if page == "README.md":
        assert (tmp_path / "counts.png").stat().st_size > 10_000


def test_a_file_of_counts_takes_less_than_ten_lines():
    (_, code), *_ = python_blocks((ROOT / "README.md").read_text(encoding="utf-8"))
    assert "genfromtxt" in code and "savefig" in code and len(code.strip().splitlines()) < 10


def test_every_public_name_is_in_the_reference():
    text = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    missing = [name for name in ng.__all__ if not re.search(rf"^::: newtongp\.{name}$", text, re.MULTILINE)]
    assert not missing


def test_pictures_are_small_there_and_shown():
    shown = set()
    for path in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        for picture in re.findall(r"!\[[^]]+\]\(([^)]+\.png)\)", path.read_text(encoding="utf-8")):
            assert 0 < (path.parent / picture).stat().st_size < 150_000, picture
            shown.add((path.parent / picture).resolve())
    assert shown == set((ROOT / "docs" / "images").glob("*.png"))


def test_every_page_is_in_one_of_four_groups():
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    groups = re.findall(r"^  - (.+?):", text.partition("nav:")[2].partition("theme:")[0], re.MULTILINE)
    assert groups == ["Start", "Tutorials", "How to", "Background", "Reference"]
    listed = re.findall(r": (\w+\.md)$", text, re.MULTILINE)
    assert sorted(listed) == sorted(path.name for path in (ROOT / "docs").glob("*.md"))


def test_pages_load_nothing_from_elsewhere():
    for path in (ROOT / "mkdocs.yml", *(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "assets").glob("*.*")):
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"""(src=|url\(|@import|extra_javascript:|!\[[^]]*\]\()\s*["']?https?:""", text), path
    assert "font: false" in (ROOT / "mkdocs.yml").read_text(encoding="utf-8")


def test_blocks_keep_their_line_numbers():
    text = "a\n\n```python\nx = 1\n```\n```bash\nls\n```\n```python\ny = 2\n```\n"
    assert python_blocks(text) == [(3, "x = 1\n"), (9, "y = 2\n")]
