"""Compiled programs on disk, so that a later process neither traces nor compiles.

JAX's own cache has compiled programs too, but finds them by what tracing and lowering have made of a function, which
takes longer than reading them. Here a file is found by everything that these depend on: the function, the classes,
static values and shapes of its arguments, the source of newtongp, the versions and settings of the packages below it,
the options of the compiler, and the processor. The source of other people's classes and functions is not known, so
programs that contain any are not saved.

Programs are saved in the user's cache folder, unless `use_cache` or the environment variable NEWTONGP_CACHE names
another one, or the variable is "off". Where that folder cannot be used, every process compiles its programs.
"""

import contextlib
import functools
import hashlib
import io
import itertools
import os
import pickle
import platform
import secrets
import stat
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from . import compile_ahead, garbage
from .jax_settings import circumstances, is_debugged
from .read_ahead import ReadAhead
from .threads import load_lapack

_KNOWN = frozenset(
    {"newtongp", "jax", "jaxlib", "equinox", "numpy", "builtins", "collections", "copyreg", "enum", "functools"}
)
"""The packages whose classes and functions may be part of a program that is saved."""
QUICK = "quick"
"""Low effort, or medium effort if there is such a program on disk."""
_SUFFIX = ".program"
VARIABLE, _OFF = "NEWTONGP_CACHE", frozenset({"off", "0", "false", "no"})
LARGEST = 2**29
"""The most bytes that programs take by default."""
_state: dict[str, Any] = {"folder": None, "max_bytes": 0, "ahead": None, "wanted": False, "decided": False}


class Unknown(Exception):
    """Something in a program is not of newtongp or the packages below it."""


def user_folder() -> Path:
    """newtongp's folder in the user's cache folder, which may not exist."""
    import platformdirs

    return Path(platformdirs.user_cache_dir("newtongp", False)).absolute()


def save_programs(folder: Path | None, max_bytes: int = LARGEST, wanted: bool = True) -> None:
    """Save programs in this folder, or nowhere. The oldest go when they take more than `max_bytes`.

    What is read from there is run, so the folder must be the user's own. `wanted` says that the user has asked for it.
    """
    if folder is not None:
        folder.mkdir(mode=0o700, exist_ok=True)
        if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
            raise ValueError(f"folder {str(folder)!r} cannot be written to: name another folder")
        if not _is_own(folder):
            raise ValueError(
                f"folder {str(folder)!r} belongs to another user, or others can write to it: name another folder, or "
                f"run chmod go-w {folder}"
            )
    ahead = None if folder is None else ReadAhead(folder, _load, _save)
    _state.update(folder=folder, max_bytes=max_bytes, ahead=ahead, wanted=wanted and folder is not None, decided=True)


def _decide() -> None:
    """Save programs in the folder of the environment or in the user's own, if there is one."""
    given = os.environ.get(VARIABLE, "")
    if given.lower() not in _OFF:
        try:
            folder = Path(given).expanduser().absolute() if given else user_folder()
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            save_programs(folder / "programs", wanted=False)
        # RuntimeError: there is no home.
        except (OSError, RuntimeError, ValueError) as error:
            if given:
                raise ValueError(f'{VARIABLE} must be "off" or a folder of your own, got {given!r}: {error}') from None
    _state["decided"] = True


def _is_own(folder: Path) -> bool:
    """Whether nobody else can write to a folder, as far as the system tells."""
    if not hasattr(os, "getuid"):
        return True
    status = folder.stat()
    return status.st_uid == os.getuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def are_read() -> bool:
    """Whether programs that will be needed are being read."""
    return _state["ahead"] is not None and _state["ahead"].is_reading


def are_wanted() -> bool:
    """Whether the user has asked that programs are saved: they are then worth a longer compilation."""
    return _state["wanted"]


def are_saved() -> bool:
    """Whether programs are saved here and now."""
    if not _state["decided"]:
        _decide()
    if _state["folder"] is None or jax.device_count() > 1:
        return False
    return not is_debugged()


def answered(question: str, find_out: Callable[[], bool]) -> bool:
    """What `find_out` returns on this machine, with these versions: from disk if an earlier process has asked it."""
    if not are_saved():
        return find_out()
    parts = (question, _machine(), _versions(), _source())
    file = _state["folder"] / (hashlib.sha256(repr(parts).encode()).hexdigest() + ".answer")
    with contextlib.suppress(OSError):
        found = {b"yes": True, b"no": False}.get(file.read_bytes())
        if found is not None:
            return found
    answer = find_out()
    _save(file, b"yes" if answer else b"no")
    return answer


class SavedPrograms:
    """A function of arrays as `jax.jit` takes it, traced and compiled once for all processes.

    `options` are those of the compiler for a level of effort, `QUICK` among them.
    """

    def __init__(
        self,
        function: Callable,
        static: int | tuple[int, ...],
        donated: int | tuple[int, ...],
        options: Callable[[Any], dict[str, Any] | None],
    ):
        self.function, self.options = function, options
        self.static, self.donated = ((given,) if isinstance(given, int) else given for given in (static, donated))
        self.names: dict[Any, str | None] = {}
        """The names of files; None for programs that are not saved."""
        self.programs: dict[Any, _Program] = {}
        self.improved: set[str] = set()
        """The names of files with programs of medium effort that are used as quick ones."""

    def __call__(self, args: tuple, effort: str) -> Any:
        """The function's value; None if a program for this call cannot be saved."""
        call = self._call(args, effort)
        if call is None:
            return None
        if call.known not in self.programs:
            loaded = _state["ahead"].use(call.name)
            if loaded is not None:
                program = _ready(*loaded)
                # A program that cannot be run here is as good as none: it is replaced.
                with contextlib.suppress(jax.errors.JaxRuntimeError):
                    answer = jax.block_until_ready(program(call.leaves))
                    self.programs[call.known] = program
                    return answer
            # A file of medium effort keeps what its name says.
            self.programs[call.known] = self._compile(call, "medium" if call.name in self.improved else effort)
        return self.programs[call.known](call.leaves)

    def start(self, args: tuple, effort: str) -> tuple[bool, Any]:
        """Start compiling the program of such a call, or reading it from its file; the call waits for it.

        Returns whether it is saved, and the shapes of its value if it is now being compiled.
        """
        call = self._call(args, effort)
        if call is None:
            return False, None
        if call.known in self.programs or _state["ahead"].begin(call.name):
            return True, None
        program = self.programs[call.known] = self._compile(call, effort)
        return True, program.shapes

    def are_compiling(self) -> bool:
        """Whether any program is being compiled."""
        return any(program.is_compiling for program in list(self.programs.values()))

    def _call(self, args: tuple, effort: str) -> "_Call | None":
        """The arguments of a call, and what its program is known by; None if it cannot be saved."""
        given = [(args[i] if i in self.static else None) for i in range(len(args))]
        dynamic = tuple(arg for i, arg in enumerate(args) if i not in self.static)
        leaves, structure = jax.tree.flatten(dynamic)
        shapes = tuple(map(_shape_of, leaves))
        leaves = _without_keys(leaves)
        settings = circumstances()
        try:
            known = (_state["folder"], structure, shapes, tuple(given), effort, settings)
            if known not in self.names:
                saved = "<" not in self.function.__qualname__
                self.names[known] = self._name(given, dynamic, shapes, effort, settings) if saved else None
        except TypeError:  # a static value that cannot be hashed
            return None
        name = self.names[known]
        return None if name is None else _Call(known, name, given, dynamic, leaves, structure, shapes)

    def _compile(self, call: "_Call", effort: str) -> "_Program":
        """A program that is being compiled, and then written to its file."""
        began = time.perf_counter()
        with garbage.paused():
            lowered, outputs = self._lower(call, effort)
        seconds = time.perf_counter() - began
        write = functools.partial(_write, _state["folder"] / call.name, len(call.leaves), outputs, lowered, seconds)
        return _Program(compile_ahead.Compilation(lowered, write), outputs, lowered.out_info)

    def _name(self, given, dynamic, shapes, effort, settings) -> str | None:
        """The name of the file; None if the program cannot be saved."""
        count = iter(range(len(shapes)))
        blank = jax.tree.map(lambda _: next(count), dynamic)
        try:
            content = _pickled((given, blank))
        except (Unknown, pickle.PicklingError, AttributeError, TypeError, ValueError):
            return None
        name = f"{self.function.__module__}.{self.function.__qualname__}"

        def file_of(level: str) -> str:
            parts = (name, str(shapes), level, str(settings), _machine(), _versions(), _source())
            return hashlib.sha256(repr(parts).encode() + content).hexdigest() + _SUFFIX

        if effort != QUICK:
            return file_of(effort)
        better = file_of("medium")
        if not (_state["folder"] / better).exists():
            return file_of("low")
        self.improved.add(better)
        return better

    def found(self, args: tuple) -> tuple[float, Callable | None]:
        """What is known of a quick program that was called: how long compiling it took in an earlier process, and the
        program if it is one of medium effort."""
        call = self._call(args, QUICK) if are_saved() else None
        if call is None or call.known not in self.programs:
            return 0.0, None
        program = self.programs[call.known]
        is_improved = call.name in self.improved and program.seconds is not None
        return program.seconds or 0.0, _called_with_trees(program) if is_improved else None

    def thorough(self, args: tuple) -> Callable | None:
        """The program of medium effort for such arguments, if an earlier process has made one."""
        call = self._call(args, "medium") if are_saved() else None
        loaded = None if call is None else _load(_state["folder"] / call.name)
        return None if loaded is None else _called_with_trees(_ready(*loaded))

    def saver(self, args: tuple, lowered: Any) -> Callable[[Any, float], None] | None:
        """Writes a program of medium effort for such arguments, from `lowered`; None if it is not saved."""
        call = self._call(args, "medium") if are_saved() else None
        # `lowered` takes keys as they are.
        if call is None or any(key is not None for *_, key in call.shapes):
            return None
        structure = jax.tree.structure(lowered.out_info)
        outputs = jax.tree.unflatten(structure, range(structure.num_leaves))
        return functools.partial(_write, _state["folder"] / call.name, len(call.leaves), outputs, lowered, 0.0)

    def _lower(self, call: "_Call", effort: str) -> tuple[Any, Any]:
        """The function as lowered for a call, and a tree with the structure of its value."""
        outputs = []

        def flat(*leaves):
            made = [
                leaf if key is None else jax.random.wrap_key_data(leaf, impl=key)
                for leaf, (*_, key) in zip(leaves, call.shapes, strict=True)
            ]
            arguments = iter(jax.tree.unflatten(call.structure, made))
            args = [value if i in self.static else next(arguments) for i, value in enumerate(call.given)]
            answer = self.function(*args)
            leaves, structure = jax.tree.flatten(answer)
            outputs.append(jax.tree.unflatten(structure, range(len(leaves))))
            return leaves

        # A name that JAX's own cache does not know: what is read from there could not be written again.
        flat.__name__ = f"{self.function.__name__}_{secrets.token_hex(8)}"
        ends = np.cumsum([0, *(len(jax.tree.leaves(arg)) for arg in call.dynamic)])
        positions = [i for i in range(len(call.given)) if i not in self.static]
        donated = [k for i, at in enumerate(positions) if at in self.donated for k in range(ends[i], ends[i + 1])]
        specs = [jax.ShapeDtypeStruct(shape, dtype, weak_type=weak) for shape, dtype, weak, _ in call.shapes]
        lowered = jax.jit(flat, donate_argnums=donated, compiler_options=self.options(effort)).lower(*specs)
        return lowered, outputs[-1]


class _Call(NamedTuple):
    """The arguments of a call, and what its program is known by in this process and on disk."""

    known: Any
    name: str
    given: list
    """The static arguments, and None for the others."""
    dynamic: tuple
    leaves: list
    structure: Any
    shapes: tuple


class _Program:
    """A compiled program, or one that is being compiled, and the structure of its value."""

    def __init__(self, compiled: Any, outputs: Any, shapes: Any = None, seconds: float | None = None):
        self._compiled, self._structure, self._shapes = compiled, jax.tree.structure(outputs), shapes
        self.seconds = seconds
        """How long tracing and compiling took in an earlier process; None if it was compiled here."""

    @property
    def shapes(self) -> Any:
        """The shapes of its value, if it was compiled here."""
        return None if self._shapes is None else jax.tree.unflatten(self._structure, self._shapes)

    @property
    def is_compiling(self) -> bool:
        """Whether it is being compiled."""
        return isinstance(self._compiled, compile_ahead.Compilation) and self._compiled.is_running

    def __call__(self, leaves: list) -> Any:
        if isinstance(self._compiled, compile_ahead.Compilation):
            self._compiled = self._compiled.result()
        return jax.tree.unflatten(self._structure, self._compiled(*leaves))


def _called_with_trees(program: _Program) -> Callable:
    """A program as a function of the arguments that are not static."""
    return lambda *dynamic: program(_without_keys(jax.tree.leaves(dynamic)))


class _Pickler(pickle.Pickler):
    """Writes values, and refuses classes and functions of packages that are not known."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, type) or callable(obj):
            home = getattr(obj, "__module__", None) or type(obj).__module__
            if home.partition(".")[0] not in _KNOWN:
                raise Unknown(home)
        return NotImplemented


def _pickled(tree: Any) -> bytes:
    buffer = io.BytesIO()
    pickler = _Pickler(buffer, protocol=5)
    # Equal values have equal bytes, whether or not a part of them is one object that occurs twice: what was read from a
    # file, or made by a program that was, has parts of its own.
    pickler.fast = True
    pickler.dump(tree)
    return buffer.getvalue()


def _is_key(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _without_keys(leaves: list) -> list:
    """Arguments as programs on disk take them: the data of keys for random numbers in place of the keys."""
    return [jax.random.key_data(leaf) if _is_key(leaf) else leaf for leaf in leaves]


def _shape_of(leaf: Any) -> tuple:
    """Shape, type and weakness of an argument, and None; of a key those of its data, and the kind of key."""
    if isinstance(leaf, np.ndarray | np.generic):
        return leaf.shape, leaf.dtype.name, False, None
    key = str(jax.random.key_impl(leaf)) if _is_key(leaf) else None
    kind = jax.typeof(leaf if key is None else jax.random.key_data(leaf))
    return kind.shape, np.dtype(kind.dtype).name, bool(getattr(kind, "weak_type", False)), key


def _write(file: Path, arguments: int, outputs: Any, lowered: Any, before: float, compiled: Any, took: float) -> None:
    """Write a program to a file, if it can be written, with the seconds that lowering and compiling took."""
    from jax.experimental import serialize_executable

    # A program that cannot be written is compiled by every process.
    with contextlib.suppress(Exception):
        program, _, _ = serialize_executable.serialize(compiled)
        counts = arguments, len(jax.tree.leaves(outputs))
        about = _pickled(outputs), "lapack" in lowered.as_text(), before + took
        _save(file, pickle.dumps((program, counts, *about), protocol=5))


def _load(file: Path) -> tuple[Any, bytes, bool, float] | None:
    """A program, the structure of its value in bytes, whether it uses LAPACK, and how long compiling it took."""
    from jax.experimental import serialize_executable

    try:
        program, (arguments, values), outputs, uses_lapack, seconds = pickle.loads(file.read_bytes())
        os.utime(file)
        structures = jax.tree.structure((tuple(range(arguments)), {})), jax.tree.structure([0] * values)
        with jax.enable_x64(True):
            return serialize_executable.deserialize_and_load(program, *structures), outputs, uses_lapack, seconds
    # A damaged file, or one for another machine, is as good as none: it is replaced.
    except Exception:
        return None


def _ready(compiled: Any, outputs: bytes, uses_lapack: bool, seconds: float) -> _Program:
    """A program that was read. Modules are imported here, and not in threads that read, which might wait for others."""
    if uses_lapack:
        load_lapack()
    return _Program(compiled, pickle.loads(outputs), seconds=seconds)


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
def _machine() -> str:
    """The device, and the processor: compiled programs use all instructions that it has."""
    device = jax.devices()[0]
    return f"{device.platform} {device.device_kind} {_processor()} {os.environ.get('XLA_FLAGS', '')}"


def _processor() -> str:
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
        # The first of several that are alike.
        first = itertools.takewhile(str.strip, lines)
        return " ".join(line for line in first if line.startswith(("model name", "flags", "Features", "CPU ")))
    return f"{platform.machine()} {platform.processor()} {platform.node()}"


@functools.cache
def _versions() -> str:
    from importlib.metadata import version

    import equinox

    return f"jax {jax.__version__} {version('jaxlib')} equinox {equinox.__version__} numpy {np.__version__}"


@functools.cache
def _source() -> str:
    """A digest of newtongp's own files."""
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    digest = hashlib.sha256()
    for folder, below, files in os.walk(root):
        below.sort()
        for name in sorted(files):
            if name.endswith(".py"):
                with open(os.path.join(folder, name), "rb") as file:
                    digest.update(f"{folder[len(root) :]}/{name}\0".encode() + file.read())
    return digest.hexdigest()
