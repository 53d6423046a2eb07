"""Traced programs on disk, so that later processes need not trace them again.

JAX's cache of compiled programs saves what the compiler does, but a program has to be traced and lowered before it can
be looked up there, which takes as long. `jax.export` writes lowered programs to files. A file is found by everything
that tracing depends on: the function, the classes, static values and shapes of its arguments, the source of newtongp,
and the versions and settings of the packages below it. The source of other people's classes and functions is not
known, so programs that contain any are not kept.
"""

import contextlib
import functools
import hashlib
import io
import os
import pickle
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from . import started

_KNOWN = frozenset(
    {"newtongp", "jax", "jaxlib", "equinox", "numpy", "builtins", "collections", "copyreg", "enum", "functools"}
)
"""The packages whose classes and functions may be part of a program that is kept."""
_SETTINGS = (
    "jax_default_matmul_precision",
    "jax_default_prng_impl",
    "jax_enable_x64",
    "jax_numpy_dtype_promotion",
    "jax_threefry_partitionable",
)
_SUFFIX = ".traced"
_state: dict[str, Any] = {"folder": None, "max_bytes": 0}
_variants: list[str] = []


class Unknown(Exception):
    """Something in a program is not of newtongp or the packages below it."""


def keep_traces(folder: Path | None, max_bytes: int = 0) -> None:
    """Keep traced programs in this folder, or nowhere. The oldest go when they take more than `max_bytes`."""
    if folder is not None:
        folder.mkdir(mode=0o700, exist_ok=True)
    _state.update(folder=folder, max_bytes=max_bytes)


@contextlib.contextmanager
def trace_variant(name: str) -> Iterator[None]:
    """A context in which programs are traced differently: those traced outside of it are not used inside."""
    _variants.append(name)
    try:
        yield
    finally:
        _variants.pop()


def are_kept() -> bool:
    """Whether traced programs are kept here and now."""
    if _state["folder"] is None or jax.device_count() > 1:
        return False
    return not is_debugged()


def is_debugged() -> bool:
    """Whether JAX runs or checks the operations of a program one by one."""
    return jax.config.jax_disable_jit or jax.config.jax_debug_nans  # pyright: ignore[reportAttributeAccessIssue]


def circumstances() -> tuple:
    """What tracing depends on besides the function and its arguments."""
    return tuple(getattr(jax.config, name) for name in _SETTINGS), tuple(_variants)


class Traced:
    """A function of arrays as `jax.jit` takes it, traced once for all processes."""

    def __init__(self, function: Callable, static: int | tuple[int, ...], donated: int | tuple[int, ...]):
        self.function = function
        self.static, self.donated = ((given,) if isinstance(given, int) else given for given in (static, donated))
        self.programs: dict[Any, tuple[Any, Any] | None] = {}
        self.started: dict[Any, started.Compilation] = {}

    def __call__(self, args: tuple, options: dict[str, Any] | None) -> Any:
        """The function's value; None if this call cannot be made from a kept trace."""
        found = self._find(args, options)
        if found is None:
            return None
        known, leaves, (run, out_structure) = found
        if known in self.started:
            self.started[known].wait()
        return jax.tree.unflatten(out_structure, run(*leaves))

    def start(self, args: tuple, options: dict[str, Any] | None) -> None:
        """Start compiling the program of such a call, or reading it from the cache; the call waits for it."""
        found = self._find(args, options) if started.FINDS_COMPILED else None
        if found is not None and found[0] not in self.started:
            known, leaves, (run, _) = found
            self.started[known] = started.Compilation(run.lower(*leaves))

    def _find(self, args: tuple, options: dict[str, Any] | None) -> tuple[Any, list, tuple[Any, Any]] | None:
        """What distinguishes the program of this call, its arguments, and the program with the form of its answer."""
        given = [(args[i] if i in self.static else None) for i in range(len(args))]
        dynamic = tuple(arg for i, arg in enumerate(args) if i not in self.static)
        leaves, structure = jax.tree.flatten(dynamic)
        shapes = tuple(map(_shape_of, leaves))
        settings = circumstances()
        try:
            known = (_state["folder"], structure, shapes, tuple(given), str(options), settings)
            if known not in self.programs:
                self.programs[known] = self._program(given, dynamic, structure, shapes, options, settings)
        except TypeError:  # a static value that cannot be hashed
            return None
        program = self.programs[known]
        return None if program is None else (known, leaves, program)

    def _program(self, given, dynamic, structure, shapes, options, settings) -> tuple[Callable, Any] | None:
        if None in shapes or "<" in self.function.__qualname__:
            return None
        try:
            file = _state["folder"] / (self._key(given, dynamic, shapes, settings) + _SUFFIX)
        except (Unknown, pickle.PicklingError, AttributeError, TypeError):
            return None
        loaded = _load(file)
        if loaded is None:
            written = self._export(given, structure, shapes)
            if written is None:
                return None
            exported, outputs, content = written
            _save(file, content)
        else:
            exported, outputs = loaded
        counts = [len(jax.tree.leaves(arg)) for arg in dynamic]
        ends = np.cumsum([0, *counts])
        positions = [i for i in range(len(given)) if i not in self.static]
        donated = [k for i, at in enumerate(positions) if at in self.donated for k in range(ends[i], ends[i + 1])]
        run = jax.jit(exported.call, donate_argnums=donated, compiler_options=options)
        return run, jax.tree.structure(outputs)

    def _key(self, given, dynamic, shapes, settings) -> str:
        count = iter(range(len(shapes)))
        blank = jax.tree.map(lambda _: next(count), dynamic)
        buffer = io.BytesIO()
        _Pickler(buffer, protocol=5).dump((given, blank))
        name = f"{self.function.__module__}.{self.function.__qualname__}"
        parts = (name, str(shapes), str(settings), jax.default_backend(), _versions(), _source())
        return hashlib.sha256(repr(parts).encode() + buffer.getvalue()).hexdigest()

    def _export(self, given, structure, shapes) -> tuple[Any, Any, bytes] | None:
        """The exported program, the structure of its outputs, and the content of the file that has both."""
        outputs = []

        def flat(*leaves):
            arguments = iter(jax.tree.unflatten(structure, leaves))
            args = [value if i in self.static else next(arguments) for i, value in enumerate(given)]
            answer = self.function(*args)
            leaves, out_structure = jax.tree.flatten(answer)
            outputs.append(jax.tree.unflatten(out_structure, range(len(leaves))))
            return leaves

        flat.__name__ = self.function.__name__
        specs = [jax.ShapeDtypeStruct(shape, dtype, weak_type=weak) for shape, dtype, weak in shapes]
        from jax import export

        try:
            exported = export.export(jax.jit(flat))(*specs)
            buffer = io.BytesIO()
            _Pickler(buffer, protocol=5).dump((bytes(exported.serialize()), outputs[-1]))
        # A program that cannot be exported is traced by every process.
        except (ValueError, NotImplementedError, Unknown, pickle.PicklingError, AttributeError):
            return None
        return exported, outputs[-1], buffer.getvalue()


class _Pickler(pickle.Pickler):
    """Writes values, and refuses classes and functions of packages that are not known."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, type) or callable(obj):
            home = getattr(obj, "__module__", None) or type(obj).__module__
            if home.partition(".")[0] not in _KNOWN:
                raise Unknown(home)
        return NotImplemented


def _shape_of(leaf: Any) -> tuple | None:
    """Shape, type and weakness of an argument; None if it has none that can be exported."""
    if isinstance(leaf, np.ndarray | np.generic):
        return leaf.shape, leaf.dtype.name, False
    kind = jax.typeof(leaf)
    if jnp.issubdtype(kind.dtype, jax.dtypes.extended):
        return None
    return kind.shape, np.dtype(kind.dtype).name, bool(getattr(kind, "weak_type", False))


def _load(file: Path) -> tuple[Any, Any] | None:
    from jax import export

    try:
        program, outputs = pickle.loads(file.read_bytes())
        os.utime(file)
        return export.deserialize(bytearray(program)), outputs
    except FileNotFoundError:
        return None
    # A damaged file is as good as none: it is replaced.
    except Exception:
        return None


def _save(file: Path, content: bytes) -> None:
    """Write a file in one step, so that other processes see all of it or nothing. Disks may be full: no error."""
    with contextlib.suppress(OSError):
        handle, name = tempfile.mkstemp(dir=file.parent, suffix=".partial")
        with os.fdopen(handle, "wb") as partial:
            partial.write(content)
        os.replace(name, file)
        _prune(file.parent)


def _prune(folder: Path) -> None:
    files = sorted((entry.stat().st_mtime, entry.stat().st_size, entry.path) for entry in os.scandir(folder))
    excess = sum(size for _, size, _ in files) - _state["max_bytes"]
    for _, size, path in files:
        if excess <= 0:
            break
        with contextlib.suppress(OSError):
            os.unlink(path)
        excess -= size


@functools.cache
def _versions() -> str:
    from importlib.metadata import version

    return " ".join(f"{name} {version(name)}" for name in ("jax", "jaxlib", "equinox", "numpy", "jaxtyping"))


@functools.cache
def _source() -> str:
    """A digest of newtongp's own files."""
    root = Path(__file__).resolve().parent.parent
    digest = hashlib.sha256()
    for file in sorted(root.rglob("*.py")):
        digest.update(file.relative_to(root).as_posix().encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()
