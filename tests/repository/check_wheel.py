"""Checks what is in the wheel and in the sdist: `make wheel` runs it after it has built both."""

import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Collection
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]


def problems(
    wheel: Collection[str], sdist: Collection[str], files: Collection[str], named: Collection[str]
) -> list[str]:
    """What is missing or too much.

    `wheel` and `sdist` are what they have in them, `files` what src has, and `named` what an sdist must have.

    >>> problems(["newtongp/a.py", "reproduction/b.py"], ["src/newtongp/a.py"], ["newtongp/a.py"], ["src", "LICENSE"])
    ['the wheel has reproduction/b.py', 'the sdist has no LICENSE']
    """
    inside = [each for each in wheel if ".dist-info/" not in each]
    return [
        *(f"the wheel has no {each}" for each in sorted(set(files) - set(inside))),
        *(f"the wheel has {each}" for each in sorted(set(inside) - set(files))),
        *(f"the sdist has no {each}" for each in named if not any((f + "/").startswith(each + "/") for f in sdist)),
    ]


def main(folder: Path) -> int:
    """Check the one wheel and the one sdist in a folder; the exit code is 0 if both are as they should be."""
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as archive:
        in_wheel = archive.namelist()
    with tarfile.open(sdist) as archive:
        in_sdist = [each.partition("/")[2] for each in archive.getnames()]
    source = _ROOT / "src"
    files = [
        each.relative_to(source).as_posix()
        for each in source.rglob("*")
        if each.is_file() and "__pycache__" not in each.parts
    ]
    declared = tomllib.loads((_ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    named = [each.lstrip("/") for each in declared["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]]
    found = problems(in_wheel, in_sdist, files, named)
    sys.stdout.writelines(f"{each}\n" for each in found or [f"{wheel.name} and {sdist.name} have all they should"])
    return bool(found)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
