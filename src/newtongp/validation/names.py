"""Classes by name: "matern32", "student_t", "negative binomial"."""

import difflib
import re
from collections.abc import Mapping, Sequence


def find(name: str, classes: Sequence[str], what: str, instead: Mapping[str, str] | None = None) -> str:
    """The class with this name, ignoring case, spaces and underscores.

    `instead` maps other names that users may try, such as those of classes that need arguments, to what to write.

    >>> find("student_t", ["StudentT", "Poisson"], "likelihood")
    'StudentT'
    >>> find("poison", ["StudentT", "Poisson"], "likelihood")
    Traceback (most recent call last):
        ...
    ValueError: there is no likelihood with the name 'poison' (did you mean 'poisson'?): names are student_t, poisson
    >>> find("matern23", ["Matern72", "Matern32"], "kernel")
    Traceback (most recent call last):
        ...
    ValueError: there is no kernel with the name 'matern23' (did you mean 'matern32'?): names are matern72, matern32
    >>> find("binomial", ["Poisson"], "likelihood", {"binomial": "Binomial(trials=10)"})
    Traceback (most recent call last):
        ...
    ValueError: there is no likelihood with the name 'binomial' alone: write Binomial(trials=10)
    """
    spelled = {_plain(cls): _with_underscores(cls) for cls in classes}
    by_plain_name = {_plain(cls): cls for cls in classes}
    wanted = _plain(name)
    if wanted in by_plain_name:
        return by_plain_name[wanted]
    if instead and wanted in instead:
        raise ValueError(f"there is no {what} with the name {name!r} alone: write {instead[wanted]}")
    near = difflib.get_close_matches(wanted, by_plain_name, n=5)
    # Letters in the wrong order are the likeliest mistake; otherwise the closest name comes first.
    near.sort(key=lambda own: sorted(own) != sorted(wanted))
    hint = f" (did you mean {spelled[near[0]]!r}?)" if near else ""
    raise ValueError(f"there is no {what} with the name {name!r}{hint}: names are {', '.join(spelled.values())}")


def _plain(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())


def _with_underscores(name: str) -> str:
    """The name of a class as a user would write it.

    >>> _with_underscores("NegativeBinomial"), _with_underscores("RBF"), _with_underscores("Matern32")
    ('negative_binomial', 'rbf', 'matern32')
    """
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
