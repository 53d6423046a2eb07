"""Names that users write for classes: "matern32", "student_t", "negative binomial"."""

import difflib
from collections.abc import Iterable


def find(name: str, classes: Iterable[str], what: str) -> str:
    """The class that is meant, whatever its capitals, spaces and underscores.

    >>> find("student_t", ["StudentT", "Poisson"], "likelihood")
    'StudentT'
    >>> find("poison", ["StudentT", "Poisson"], "likelihood")
    Traceback (most recent call last):
        ...
    ValueError: there is no likelihood with the name 'poison' (did you mean 'poisson'?): names are studentt, poisson
    """
    plain = {each.lower(): each for each in classes}
    wanted = "".join(letter for letter in name.lower() if letter.isalnum())
    if wanted in plain:
        return plain[wanted]
    near = difflib.get_close_matches(wanted, plain, n=1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    raise ValueError(f"there is no {what} with the name {name!r}{hint}: names are {', '.join(plain)}")
