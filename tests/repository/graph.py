"""Which module of newtongp imports which, read from the source; and which room may import which.

`python -m tests.repository.graph` writes the picture of the rooms into docs/design.md.
"""

import ast
import functools
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
ROOT = REPOSITORY / "src" / "newtongp"

MAY_IMPORT = {
    "_runtime": "",
    "validation": "_runtime",
    "numerics": "_runtime validation",
    "parameters": "_runtime validation numerics",
    "kernels": "_runtime validation numerics parameters",
    "likelihoods": "_runtime validation numerics parameters",
    "means": "_runtime validation numerics parameters",
    "terms": "_runtime validation numerics parameters kernels",
    "priors": "_runtime validation numerics parameters kernels means terms",
    "methods": "_runtime validation numerics likelihoods",
    "model": "validation likelihoods terms priors",
    "inputs": "_runtime validation numerics likelihoods terms priors model",
    "results": "numerics parameters terms priors model inputs",
    "inference": (
        "_runtime validation numerics parameters kernels means likelihoods priors methods model inputs results"
    ),
    "prediction": "_runtime validation numerics parameters likelihoods terms priors methods model inputs results",
    "storage": (
        "_runtime validation numerics kernels means likelihoods terms priors methods model inputs results inference"
    ),
    "fitting": (
        "_runtime validation numerics parameters kernels means likelihoods terms priors methods model inputs results "
        "inference storage"
    ),
    "plotting": "_runtime validation likelihoods terms priors model inputs results prediction",
    "diagnostics": (
        "_runtime validation numerics parameters kernels likelihoods terms priors methods model inputs results "
        "inference prediction plotting"
    ),
    "report": "_runtime validation results plotting diagnostics",
    "datasets": "",
    "forecasting": (
        "_runtime validation numerics parameters kernels likelihoods terms model inputs results inference prediction "
        "storage fitting plotting"
    ),
    "interface": "_runtime validation numerics results prediction storage fitting plotting diagnostics report",
    "commands": "validation parameters likelihoods terms methods model storage fitting diagnostics report forecasting",
    "sklearn": "validation parameters kernels means likelihoods priors methods model results inference fitting",
    "cli": "_runtime commands",
    "__main__": "cli",
    "": (
        "_runtime numerics parameters kernels means likelihoods terms priors methods model results inference interface "
        "diagnostics fitting forecasting inputs plotting prediction report storage datasets"
    ),
}
"""For each room (or module at the root; "" is the package itself) those that it may import, from the bottom up."""


@functools.cache
def modules() -> dict[str, Path]:
    """All modules by their dotted names, without the package's own."""
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def room_of(module: str) -> str:
    """The room that a module is in."""
    return module.partition(".")[0]


@functools.cache
def imports(module: str) -> frozenset[str]:
    """The modules that a module imports, inside functions too, but not for type checkers only."""
    path = modules()[module]
    package = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
    found = set()
    for node in _nodes(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level:
            above = [part for part in package if part]
            base = [*above[: len(above) - node.level + 1], *(node.module or "").split(".")]
            base = ".".join(part for part in base if part)
            for alias in node.names:
                inside = f"{base}.{alias.name}".lstrip(".")
                found.add(inside if inside in modules() else base)
    return frozenset(found)


def _nodes(tree: ast.AST):
    for node in ast.iter_child_nodes(tree):
        if not (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)):
            yield node
            yield from _nodes(node)


def rooms_imported(room: str) -> set[str]:
    """The rooms that the modules of a room import."""
    return {room_of(other) for module in modules() if room_of(module) == room for other in imports(module)}


def drawing() -> str:
    """The rooms as a Mermaid graph: an arrow from each to those right below it."""
    below = {room: rooms_imported(room) - {room} for room in MAY_IMPORT if room not in ("", "__main__")}

    def all_below(room: str) -> set[str]:
        return below[room].union(*(all_below(other) for other in below[room]))

    lines = ["```mermaid", "graph TD"]
    for room, others in below.items():
        indirect = set().union(*(all_below(other) for other in others))
        lines += [f"    {room} --> {other}" for other in MAY_IMPORT if other in others - indirect]
    return "\n".join([*lines, "```"])


BEGIN, END = "<!-- rooms: begin -->", "<!-- rooms: end -->"


def drawn(text: str) -> str:
    """A page with the present drawing in its place."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{drawing()}\n\n{END}{after}"


if __name__ == "__main__":
    page = REPOSITORY / "docs" / "design.md"
    page.write_text(drawn(page.read_text(encoding="utf-8")), encoding="utf-8")
    sys.stdout.write(drawing() + "\n")
