"""The rooms keep to themselves: which imports which, where linear algebra is, and who touches JAX's settings."""

import ast
import gc
from pathlib import Path

import pytest

import newtongp
from newtongp._imports import without_collector

ROOT = Path(newtongp.__file__).parent
FILES = {str(path.relative_to(ROOT)): ast.parse(path.read_text(encoding="utf-8")) for path in ROOT.rglob("*.py")}


def imported(name):
    """Everything a file imports, as full dotted names."""
    package = ["newtongp", *Path(name).parent.parts]
    found = set()
    for node in ast.walk(FILES[name]):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            found |= {f"{base}.{alias.name}" for alias in node.names} | {base}
    return found


def rooms(name):
    """The rooms of newtongp that a file imports."""
    return {full.split(".")[1] for full in imported(name) if full.startswith("newtongp.")}


FORBIDDEN = {
    "priors": {"methods", "infer", "loop", "steps", "results", "likelihoods", "predict"},
    "methods": {"priors", "infer", "loop", "steps", "results", "predict"},
    "likelihoods": {"priors", "methods", "infer", "loop", "steps", "results", "kernels", "predict", "model"},
    "kernels": {"priors", "methods", "infer", "loop", "steps", "results", "likelihoods", "predict", "model"},
    "linalg.py": {"priors", "methods", "infer", "loop", "steps", "results", "likelihoods", "kernels", "gaussian"},
    "gaussian.py": {"priors", "methods", "infer", "loop", "steps", "results", "likelihoods", "kernels"},
    "cubature.py": {"priors", "methods", "infer", "loop", "steps", "results", "likelihoods", "kernels"},
    "steps.py": {"priors", "methods", "infer", "loop", "likelihoods", "kernels"},
    "precision.py": {
        "priors",
        "methods",
        "infer",
        "loop",
        "steps",
        "results",
        "likelihoods",
        "kernels",
        "gaussian",
        "linalg",
    },
}


@pytest.mark.parametrize("room", FORBIDDEN)
def test_a_room_imports_only_what_it_may(room):
    files = [name for name in FILES if Path(name).parts[0] == room]
    assert files
    assert {name: rooms(name) & FORBIDDEN[room] for name in files if rooms(name) & FORBIDDEN[room]} == {}


def test_the_reader_of_imports_sees_them_all():
    assert {"priors", "methods", "likelihoods"} <= rooms("loop.py")
    assert "newtongp.priors.base" in imported("priors/dense.py")
    assert "linalg" in rooms("priors/dense.py")


def dotted(node):
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([*([node.id] if isinstance(node, ast.Name) else []), *reversed(parts)])


def foreign_linear_algebra(name):
    """Lines that reach for someone else's linear algebra: jnp.linalg, jax.lax.linalg, scipy.linalg, ..."""
    used = [
        f"{name}:{node.lineno} {dotted(node)}"
        for node in ast.walk(FILES[name])
        if isinstance(node, ast.Attribute) and ".linalg." in f"{dotted(node)}." and not dotted(node).endswith(".linalg")
    ]
    taken = [full for full in imported(name) if "linalg" in full.split(".") and not full.startswith("newtongp.")]
    return used + [f"{name} {full}" for full in taken]


def test_linear_algebra_is_in_one_room():
    assert [line for name in FILES if name != "linalg.py" for line in foreign_linear_algebra(name)] == []
    assert foreign_linear_algebra("linalg.py")


def test_nobody_touches_the_settings_of_jax():
    """`programs.py` reads them, all in all: what was compiled under other settings is not for these."""
    touched = [
        f"{name}:{node.lineno} {dotted(node)}"
        for name, tree in FILES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and dotted(node).startswith("jax.config")
        if name != "programs.py" or dotted(node) not in ("jax.config", "jax.config.values", "jax.config.values.items")
    ]
    assert touched == []
    assert [name for name in FILES if any(full.startswith("jax.config") for full in imported(name))] == []


def test_only_results_know_how_to_predict_and_only_when_asked():
    """`results` imports `predict` inside its methods, so that neither needs the other to be imported first."""
    top = [node for node in FILES["results.py"].body if isinstance(node, (ast.Import, ast.ImportFrom))]
    assert not any("predict" in {alias.name for alias in node.names} for node in top)


def test_every_public_name_is_there():
    for package in (newtongp, newtongp.kernels, newtongp.likelihoods):
        assert [name for name in package.__all__ if not hasattr(package, name)] == []
        assert set(package.__all__) <= set(dir(package))
    assert len(newtongp.__all__) < 70
    with pytest.raises(AttributeError, match="no attribute 'Nonesuch'"):
        newtongp.kernels.Nonesuch  # noqa: B018


@pytest.mark.parametrize("name", ["__init__.py", "kernels/__init__.py", "likelihoods/__init__.py"])
def test_what_is_imported_on_demand_is_what_type_checkers_see(name):
    [seen] = [node for node in FILES[name].body if isinstance(node, ast.If)]
    wanted = {(node.module or alias.name, alias.name) for node in seen.body for alias in node.names}
    [call] = [
        node for node in ast.walk(FILES[name]) if isinstance(node, ast.Call) and "on_demand" in ast.unparse(node.func)
    ]
    names = ast.literal_eval(call.args[1])
    assert {(module, name) for module, found in names.items() for name in found.split() or [module]} == wanted


@pytest.mark.parametrize("on", [True, False])
def test_the_collector_is_as_it_was(on):
    was_on, frozen = gc.isenabled(), gc.get_freeze_count()
    try:
        gc.enable() if on else gc.disable()
        with without_collector():
            assert not gc.isenabled()
        assert gc.isenabled() is on
        assert gc.get_freeze_count() == frozen  # far more than a program has that has just started
    finally:
        gc.enable() if was_on else gc.disable()
