"""The Python blocks of the README and of the pages that promise it run from top to bottom."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def python_blocks(text):
    """The code of every fenced Python block, with the line of the page that it starts on."""
    return [(text.count("\n", 0, match.start(1)), match.group(1)) for match in BLOCK.finditer(text)]


@pytest.mark.parametrize(
    "page",
    [
        "README.md",
        "docs/index.md",
        "docs/fitting.md",
        "docs/time.md",
        "docs/linear.md",
        "docs/sparse.md",
        "docs/scaling.md",
        "docs/latents.md",
        "docs/checking.md",
        "docs/saving.md",
        "docs/extending.md",
    ],
)
def test_examples_run(page):
    path = ROOT / page
    blocks = python_blocks(path.read_text(encoding="utf-8"))
    assert blocks, f"{page} has no Python block"
    namespace = {"__name__": "example"}
    for line, code in blocks:
        # The empty lines make a traceback show the line of the page.
        exec(compile("\n" * line + code, str(path), "exec"), namespace)


def test_blocks_keep_their_line_numbers():
    text = "a\n\n```python\nx = 1\n```\n```bash\nls\n```\n```python\ny = 2\n```\n"
    assert python_blocks(text) == [(3, "x = 1\n"), (9, "y = 2\n")]
