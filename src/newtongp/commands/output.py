"""What a command prints: text for a person, plain lines in a pipe, or one JSON object."""

import contextlib
import json
import math
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np


class Output:
    """Collects what a command has to say. Notes go to standard error at once, results to standard output at the end."""

    def __init__(self, as_json: bool, quiet: bool):
        self.as_json, self.quiet = as_json, quiet
        self.facts: dict[str, Any] = {}

    @property
    def terminal(self) -> bool:
        """Whether a person watches."""
        return sys.stderr.isatty() and not self.as_json and not self.quiet

    def note(self, sentence: str) -> None:
        """Say something on the way."""
        if not self.quiet:
            print(sentence, file=sys.stderr, flush=True)

    @contextlib.contextmanager
    def working(self, sentence: str) -> Iterator[None]:
        """Show on a terminal, as long as the body runs, that the program works; nothing elsewhere."""
        if not self.terminal:
            yield
            return
        from rich.console import Console

        with Console(stderr=True).status(sentence):
            yield

    def result(self, name: str, value: Any, shown: Any = None) -> None:
        """A result, by name in JSON, and as text or as something that rich prints."""
        self.facts[name] = value
        if self.as_json or shown is None:
            return
        from rich.console import Console

        Console(width=None if sys.stdout.isatty() else 120, soft_wrap=isinstance(shown, str), highlight=False).print(
            shown, markup=False
        )

    def files(self, written: Mapping[str, Path]) -> None:
        """The files that were written, by what they are."""
        self.result("files", {what: str(file) for what, file in written.items()})
        for what, file in written.items():
            self.note(f"{what.capitalize()}: {file}")

    def close(self) -> None:
        """Print the JSON object, if one was asked for."""
        if self.as_json:
            print(json.dumps(_plain(self.facts), indent=1, ensure_ascii=False))


def _plain(value: Any) -> Any:
    """Values that JSON has; numbers that it does not have become null."""
    if isinstance(value, dict):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(entry) for entry in value]
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, (np.generic,)):
        return _plain(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)
