"""Examples in docstrings as blocks of code on the API pages: Markdown would take `>>>` for quotations."""

import re
from typing import Any

import griffe

_EXAMPLE = re.compile(r"(?:^>>> .*\n?(?:^(?!\s*$).+\n?)*)(?:\n*^>>> .*\n?(?:^(?!\s*$).+\n?)*)*", re.MULTILINE)


def fenced(text: str) -> str:
    """The text with its examples as fenced blocks.

    >>> fenced("One.\\n\\n>>> 1 + 1\\n2").splitlines()
    ['One.', '', '```pycon', '>>> 1 + 1', '2', '```']
    """
    return _EXAMPLE.sub(lambda match: f"```pycon\n{match.group().rstrip()}\n```", text)


class DoctestBlocks(griffe.Extension):
    """Changes the docstring of every object that is read."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Called once for each module, class, function and attribute."""
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)
