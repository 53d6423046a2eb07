"""Prints the lowest versions that pyproject.toml allows, as constraints for pip: `make test-lowest` runs with them."""

import re
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path

_REQUIREMENT = re.compile(r"(?P<name>[\w.-]+)(\[[\w,.-]+\])?>=(?P<version>[\w.]+)")


def lowest(requirements: Iterable[str]) -> dict[str, str]:
    """The lowest version of every package; the higher one where two bounds are given.

    >>> lowest(["jax>=0.8.0", "pyright[nodejs]>=1.1.400", "jax>=0.10.1"])
    {'jax': '0.10.1', 'pyright': '1.1.400'}
    >>> lowest(["jax"])
    Traceback (most recent call last):
        ...
    ValueError: jax has no lower bound of the form name>=version
    """
    found: dict[str, str] = {}
    for requirement in requirements:
        match = _REQUIREMENT.fullmatch(requirement)
        if match is None:
            raise ValueError(f"{requirement} has no lower bound of the form name>=version")
        name, version = match["name"], match["version"]
        found[name] = max(found.get(name, "0"), version, key=lambda each: [int(part) for part in each.split(".")])
    return found


def declared(file: Path) -> list[str]:
    """All that the package and its tests require."""
    content = tomllib.loads(file.read_text(encoding="utf-8"))
    project = content["project"]
    return [
        *project["dependencies"],
        *(each for extra in project["optional-dependencies"].values() for each in extra),
        *content["dependency-groups"]["test"],
    ]


if __name__ == "__main__":
    for name, version in lowest(declared(Path(__file__).resolve().parents[2] / "pyproject.toml")).items():
        sys.stdout.write(f"{name}=={version}\n")
