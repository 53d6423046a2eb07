"""The rooms keep to themselves: which imports which, where linear algebra is, and who touches JAX's settings."""

import ast
import functools

import pytest

import newtongp
from tests.repository.graph import MAY_IMPORT, REPOSITORY, ROOT, drawn, imports, modules, room_of, rooms_imported

pytestmark = pytest.mark.versions

FILES = {str(path.relative_to(ROOT)): ast.parse(path.read_text(encoding="utf-8")) for path in ROOT.rglob("*.py")}


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_a_room_imports_only_what_it_may(room):
    assert rooms_imported(room) - {room} <= set(MAY_IMPORT[room].split())


def test_every_room_is_in_the_list():
    assert {room_of(module) for module in modules()} == set(MAY_IMPORT)


def reachable(start, graph):
    found, waiting = set(), list(graph[start])
    while waiting:
        each = waiting.pop()
        if each not in found:
            found.add(each)
            waiting.extend(graph[each])
    return found


def test_no_room_imports_itself_through_others():
    graph = {room: rooms_imported(room) - {room} for room in MAY_IMPORT}
    assert [room for room in graph if room in reachable(room, graph)] == []


def test_no_module_imports_itself_through_others():
    """Imports inside functions count; a package and the modules in it are one where it offers their names."""
    graph = {module: imports(module) - {module} for module in modules()}
    assert [module for module in graph if module in reachable(module, graph)] == []


def test_the_picture_of_the_rooms_is_up_to_date():
    page = (REPOSITORY / "docs" / "design.md").read_text(encoding="utf-8")
    assert drawn(page) == page, "run python -m tests.repository.graph"


def test_the_root_has_only_what_users_combine():
    loose = {path.stem for path in ROOT.glob("*.py")}
    assert loose == {"__init__", "__main__", "cli", "means", "model"}


def test_the_reader_of_imports_sees_them_all():
    assert {"priors.base", "methods.rule", "likelihoods.base"} <= imports("inference.loop")
    assert "inference.minibatch" in imports("inference.infer")  # inside a function
    assert "numerics.linalg" in imports("priors.dense")  # as `from ..numerics import linalg`


def dotted(node):
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([*([node.id] if isinstance(node, ast.Name) else []), *reversed(parts)])


@functools.cache
def imported(name):
    """Everything that a file imports from elsewhere, as dotted names."""
    found = set()
    for node in ast.walk(FILES[name]):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
    return found


def foreign_linear_algebra(name):
    """Lines that reach for someone else's linear algebra: jnp.linalg, jax.lax.linalg, scipy.linalg, ..."""
    used = [
        f"{name}:{node.lineno} {dotted(node)}"
        for node in ast.walk(FILES[name])
        if isinstance(node, ast.Attribute) and ".linalg." in f"{dotted(node)}." and not dotted(node).endswith(".linalg")
    ]
    return used + [f"{name} {full}" for full in imported(name) if "linalg" in full.split(".")]


def test_linear_algebra_is_in_one_place():
    # The last one only loads the library, to set its number of threads.
    places = {"numerics/known.py", "numerics/linalg.py", "numerics/small.py", "_runtime/threads.py"}
    assert [line for name in FILES if name not in places for line in foreign_linear_algebra(name)] == []
    assert foreign_linear_algebra("numerics/linalg.py")


def test_nobody_touches_the_settings_of_jax():
    touched = [
        f"{name}:{node.lineno} {dotted(node)}"
        for name, tree in FILES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and dotted(node).startswith("jax.config")
        if name != "_runtime/cache.py"  # which users call for that
        and not (name == "_runtime/jax_settings.py" and "update" not in dotted(node))  # which reads them only
    ]
    assert touched == []
    assert [name for name in FILES if any(full.startswith("jax.config") for full in imported(name))] == []


def test_every_public_name_is_there():
    for package in (newtongp, newtongp.kernels, newtongp.likelihoods, newtongp.parameters, newtongp.results):
        assert [name for name in package.__all__ if not hasattr(package, name)] == []
        assert set(package.__all__) <= set(dir(package))
    with pytest.raises(AttributeError, match="no attribute 'Nonesuch'"):
        newtongp.kernels.Nonesuch  # noqa: B018


METHODS = "Method VI FirstOrderVI Newton PosteriorLinearisation PowerEP Taylor Exact GaussNewton QuasiNewton Heuristic"
PRIORS = "GP LinearModel MarkovGP SpaceTimeGP SparseGP StateSpaceModel"


def test_there_are_few_public_names():
    """Apart from rooms, priors, likelihoods, and methods with what they are made of."""
    rooms = {name for name in newtongp.__all__ if type(getattr(newtongp, name)) is type(newtongp)}
    named = {*METHODS.split(), "Riemannian", *PRIORS.split(), "Likelihood"}
    assert named <= set(newtongp.__all__)
    assert len(set(newtongp.__all__) - rooms - named) <= 30


@pytest.mark.parametrize(
    ("name", "place"),
    [("GaussHermite", "newtongp.cubature.GaussHermite"), ("FitResult", "results.FitResult"), ("demo", "make demo")],
)
def test_names_that_have_moved_say_where_they_are(name, place):
    with pytest.raises(AttributeError, match=place):
        getattr(newtongp, name)


def test_what_has_moved_is_where_it_is_said_to_be():
    for name, place in newtongp._MOVED.items():
        if place.startswith("newtongp."):
            found = functools.reduce(getattr, place.split(".")[1:], newtongp)
            assert name in ("checking", found.__name__)


@pytest.mark.parametrize("name", ["__init__.py", "kernels/__init__.py", "likelihoods/__init__.py"])
def test_what_is_imported_on_demand_is_what_type_checkers_see(name):
    [seen] = [node for node in FILES[name].body if isinstance(node, ast.If)]
    wanted = {(node.module or "", alias.name) for node in seen.body for alias in node.names}
    [call] = [
        node for node in ast.walk(FILES[name]) if isinstance(node, ast.Call) and "on_demand" in ast.unparse(node.func)
    ]
    names = ast.literal_eval(call.args[1])
    assert {(module, name) for module, found in names.items() for name in found.split()} == wanted
