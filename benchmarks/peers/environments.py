"""Environments for the tools that we are measured against, made on first use."""

import shutil
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / ".peers"

# BayesNewton's own pins have gone from the index; it was written for these versions, and does not list numba.
# Each line is one call of pip.
RECIPES = {
    "bayesnewton": [
        [
            "jax==0.4.13",
            "jaxlib==0.4.13",
            "objax==1.7.0",
            "tensorflow_probability==0.21",
            "numba",
            "numpy<1.26",
            "scipy<1.12",
        ],
        ["--no-deps", "bayesnewton==1.3.4"],
    ],
    "gaussian": [["celerite2==0.3.3", "tinygp==0.3.1"]],
    "gpflow": [
        [
            "gpflow==2.11.2",
            "tensorflow==2.16.2",
            "tensorflow_probability==0.24.0",
            "tf-keras==2.16.0",
            "setuptools<81",
        ]
    ],
    "gpytorch": [["torch==2.13.0", "gpytorch==1.15.2"]],
}
# jaxlib 0.4.13 has no wheels for later versions of Python.
PYTHON = {"bayesnewton": (3, 11), "gaussian": None, "gpflow": (3, 11), "gpytorch": (3, 11)}


class Unavailable(Exception):
    """An environment cannot be made here; says why."""


def python_of(name: str) -> str:
    """The interpreter of the environment `name`, which is made if it is not there yet; or Unavailable."""
    folder = FOLDER / name
    interpreter, complete = folder / "bin" / "python", folder / "complete"
    recipe = "\n".join(" ".join(line) for line in RECIPES[name])
    if complete.exists() and complete.read_text() == recipe:
        return str(interpreter)
    print(f"Making the environment {folder.name}: once, about a minute ...", file=sys.stderr, flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    _call([_base_python(name), "-m", "venv", str(folder)], name)
    for packages in RECIPES[name]:
        command = [str(interpreter), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages]
        _call(command, name)
    complete.write_text(recipe)
    return str(interpreter)


def _base_python(name: str) -> str:
    version = PYTHON[name]
    if version is None or sys.version_info[:2] == version:
        return sys.executable
    found = shutil.which("python{}.{}".format(*version))
    if found is None:
        raise Unavailable(f"{name} needs Python {version[0]}.{version[1]}, which is not on the path")
    return found


def _call(command: list[str], name: str) -> None:
    finished = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if finished.returncode:
        last = (finished.stdout.strip().splitlines() or ["no message"])[-1]
        raise Unavailable(f"{name} cannot be installed: {last}")


if __name__ == "__main__":
    for each in RECIPES:
        try:
            print(python_of(each))
        except Unavailable as why:
            print(why)
