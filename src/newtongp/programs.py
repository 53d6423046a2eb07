"""Programs that are kept from one process to the next.

JAX can keep what XLA has compiled, but a new process still has to trace and lower every program before it can ask for
it, which takes longer than anything else. Where JAX has been given a folder for its compilation cache, our large
programs are kept in it too, ready to run. Such a file is used only by the very same newtongp, JAX, settings and
processor, and only for models that are made of newtongp's own classes: what others wrote is traced every time.
Whatever goes wrong here, the program is traced as if nothing had been kept.

As with JAX's own cache, whoever can write to the folder can run code in the processes that read it.
NEWTONGP_KEEP_PROGRAMS=0 in the environment switches this off.
"""

import contextlib
import dataclasses
import enum
import functools
import hashlib
import importlib
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.core
import jaxlib
import numpy as np

_PACKAGE = __name__.partition(".")[0]

_LEAF = object()
_NO_MATTER = ("jax_compilation_cache_dir",)

_set_aside: list[bool] = []
_ready: dict[Any, Callable[[Sequence[Any], Sequence[Any]], Any]] = {}
"""What has been read or compiled in this process, by question: arguments and their leaves → answer."""


class _NotKept(Exception):
    """A program that is not to be kept, or cannot be; says why."""


def run(
    function: Callable,
    jitted_as: Callable[[str], Any],
    args: Sequence[Any],
    static: Sequence[int],
    donated: Sequence[int],
    way: Any,
    always: bool = False,
) -> tuple[Any] | None:
    """What `function` returns, in a tuple, or None where nothing is kept: then it has to be called as usual.

    `jitted_as(name)` is `jax.jit` of the function by another name; `way` tells apart ways of compiling it. It is kept
    if making it takes as long as JAX asks of what is kept, or `always`.
    """
    try:
        folder = _folder()
        if folder is None:
            return None
        fixed = tuple(args[i] for i in static)
        leaves, structure = jax.tree.flatten([value for i, value in enumerate(args) if i not in static])
        question = (function, way, fixed, structure, tuple(map(_type_of, leaves)), _settings())
        known = _ready.get(question)
        if known is None:
            # Copies, or else arrays would be used up by a program that then fails.
            args = tuple(jax.tree.map(np.array, each) if i in donated else each for i, each in enumerate(args))
            leaves = jax.tree.leaves([value for i, value in enumerate(args) if i not in static])
            file = folder / f"{function.__name__.strip('_')}-{_key(question, args, static)}"
    # Keeping programs saves time, and is never a reason to fail: JAX itself is asked then.
    except Exception:
        return None
    if known is None:
        answer, _ready[question] = _first_time(file, jitted_as, args, leaves, always)
        return (answer,)
    return (known(args, leaves),)


def _first_time(
    file: Path, jitted_as: Callable, args: Sequence[Any], leaves: Sequence[Any], always: bool
) -> tuple[Any, Callable]:
    """An answer, and how to get others like it in this process."""
    found, failed = None, True
    try:
        found = _attempt(lambda: _read(file), leaves)
        # XLA cannot write down again what JAX took from its own cache. There, programs are known by their names too.
        for name in (file.name, f"{file.name}-{time.time_ns()}"):
            if found is None:
                found = _attempt(lambda name=name: _make(file, jitted_as(name), args, always), leaves)
    except _NotKept:
        failed = False
    if found is not None:
        program, answer = found
        return answer, lambda args, leaves: program(leaves)
    jitted = jitted_as(file.name)
    answer = jitted(*args)
    if failed:
        _write(file, b"")  # for others not to attempt it
    return answer, lambda args, leaves: jitted(*args)


def remembered(test: Callable[[], bool]) -> Callable[[], bool]:
    """A test of JAX or XLA that need not be repeated, here and now or in the next process, once it has been passed."""

    @functools.cache
    @functools.wraps(test)
    def ask() -> bool:
        file = None
        with contextlib.suppress(Exception):
            folder = _folder()
            if folder is not None:
                file = folder / f"{test.__name__.strip('_')}-{_digest([_installation(), repr(_settings())])}"
                if file.exists():
                    return True
        passed = test()
        if passed and file is not None:
            _write(file, b"")
        return passed

    return ask


@contextlib.contextmanager
def set_aside() -> Iterator[None]:
    """Within this context nothing is kept, and nothing that was kept is used."""
    _set_aside.append(True)
    try:
        yield
    finally:
        _set_aside.pop()


def _folder() -> Path | None:
    """Where programs are kept, or None where they are not."""
    path = _setting("compilation_cache_dir")
    if _set_aside or not path or "://" in path or not _setting("enable_compilation_cache"):
        return None
    if os.environ.get("NEWTONGP_KEEP_PROGRAMS") == "0" or _setting("compilation_cache_max_size") != -1:
        return None
    # What these ask for happens while a program is traced, or in JAX's own way of running it.
    if _setting("disable_jit") or _setting("debug_nans") or _setting("debug_infs"):
        return None
    if jax.default_backend() != "cpu" or jax.device_count() != 1:
        return None
    return Path(path) / _PACKAGE


def _setting(name: str) -> Any:
    return getattr(jax.config, f"jax_{name}")


# What decides on a program ------------------------------------------------------------------------------------------


def _type_of(leaf: Any) -> Any:
    if type(leaf) in (bool, int, float):
        return type(leaf).__name__
    if isinstance(leaf, (np.ndarray, np.generic, jax.Array)) and not isinstance(leaf, jax.core.Tracer):
        return leaf.shape, leaf.dtype, getattr(leaf, "weak_type", False)
    raise _NotKept(f"{type(leaf)} is no array")


def _settings() -> tuple[Any, ...]:
    """All settings of JAX, as they are in this context."""
    return tuple(
        getattr(jax.config, name, value) for name, value in jax.config.values.items() if name not in _NO_MATTER
    )


def _key(question: Any, args: Sequence[Any], static: Sequence[int]) -> str:
    """What tells a question from all others, in other processes too."""
    function, way, _, structure, types, settings = question
    leaves = []

    def leaf(value: Any) -> str:
        leaves.append(_type_of(value))
        return "leaf"

    described = [_describe(value, None if i in static else leaf) for i, value in enumerate(args)]
    if len(leaves) != structure.num_leaves:
        raise _NotKept("JAX sees other leaves than we do")
    what = [function.__module__, function.__qualname__, way, described, str(types)]
    return _digest([_installation(), repr(settings), what])


@functools.cache
def _installation() -> str:
    """Versions, our source files, the compiler's flags and the processor."""
    root, device = Path(__file__).parent, jax.devices()[0]
    sources = {str(path.relative_to(root)): path.stat() for path in root.rglob("*.py")}
    return _digest(
        [
            [sys.version, *(module.__version__ for module in (np, jax, jaxlib, eqx))],
            [device.platform, device.device_kind, device.client.platform_version],
            [os.environ.get("XLA_FLAGS"), platform.machine(), _processor()],
            {name: [found.st_mtime_ns, found.st_size] for name, found in sources.items()},
        ]
    )


def _processor() -> list[Any]:
    """The number of processors that we may use, their model and features, as far as the system tells."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").partition("\n\n")[0].splitlines()
        return [count, *(line for line in lines if line.startswith(("model", "flags", "Features", "CPU ")))]
    return [count, platform.processor(), platform.node()]


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:32]


# Trees as text and back ---------------------------------------------------------------------------------------------


def _describe(value: Any, leaf: Callable | None) -> Any:
    """`value` as what JSON can hold. `leaf` describes what JAX traces; without it, `value` is static."""
    kind = type(value)
    if value is None:
        return None
    if kind in (tuple, list):
        return [kind.__name__, *(_describe(entry, leaf) for entry in value)]
    if isinstance(value, tuple) and _is_ours(kind):
        return ["named", kind.__module__, kind.__qualname__, *(_describe(entry, leaf) for entry in value)]
    if dataclasses.is_dataclass(kind) and _is_ours(kind):
        fields = {
            field.name: _describe(getattr(value, field.name), None if field.metadata.get("static", False) else leaf)
            for field in dataclasses.fields(kind)
        }
        return ["object", kind.__module__, kind.__qualname__, fields]
    if leaf is not None:
        return leaf(value)
    if kind in (bool, int, float):
        return value
    if kind is str:
        return ["text", value]
    if isinstance(value, enum.Enum) and _is_ours(kind):
        return ["member", kind.__module__, kind.__qualname__, value.name]
    if isinstance(value, np.generic) and not value.dtype.hasobject:
        return ["number", value.dtype.str, value.tobytes().hex()]
    if callable(value) and _is_ours(value):
        return ["name", value.__module__, value.__qualname__]
    raise _NotKept(f"{kind} is not newtongp's own")


def _structure(text: Any) -> Any:
    """What JAX sees in the tree that was described so, with "leaf" for each of its leaves."""
    return jax.tree.structure(_restore(text))


def _restore(text: Any) -> Any:
    if text == "leaf":
        return _LEAF
    if not isinstance(text, list):
        return text
    what, *rest = text
    if what == "text":
        return rest[0]
    if what in ("tuple", "list"):
        return {"tuple": tuple, "list": list}[what](map(_restore, rest))
    if what == "number":
        return np.frombuffer(bytes.fromhex(rest[1]), dtype=rest[0])[0]
    kind = _ours(*rest[:2])
    if what == "name":
        return kind
    if what == "member":
        return kind[rest[2]]
    if what == "named":
        return kind(*map(_restore, rest[2:]))
    made = object.__new__(kind)
    for name, entry in rest[2].items():
        object.__setattr__(made, name, _restore(entry))
    return made


def _is_ours(what: Any) -> bool:
    """Whether this class or function is newtongp's own, and is to be found under its name."""
    if what.__module__.partition(".")[0] != _PACKAGE:
        return False
    with contextlib.suppress(AttributeError, ImportError):
        return _ours(what.__module__, what.__qualname__) is what
    return False


def _ours(module: str, name: str) -> Any:
    if module.partition(".")[0] != _PACKAGE:
        raise _NotKept(f"{module} is not newtongp's own")
    return functools.reduce(getattr, name.split("."), importlib.import_module(module))


# Programs -----------------------------------------------------------------------------------------------------------


class _Program:
    """A compiled program as it is kept: its code, which of the leaves it wants, and what its results are part of."""

    def __init__(self, content: bytes, file: Path | None = None):
        checksum, header, code = content.split(b"\n", 2)
        if checksum.decode() != _checksum(header, code):
            raise ValueError("damaged")
        self._content, self._file = content, file
        self._wanted, answer = json.loads(header)
        self._answer = _structure(answer)
        device = jax.devices()[0]
        self._executable = device.client.deserialize_executable(code, [device])

    def __call__(self, leaves: Sequence[Any]) -> Any:
        given = [leaves[i] for i in self._wanted]
        moved = iter(jax.device_put([leaf for leaf in given if not isinstance(leaf, jax.Array)]))
        given = [leaf if isinstance(leaf, jax.Array) else next(moved) for leaf in given]
        results = self._executable.execute_sharded(given).disassemble_into_single_device_arrays()
        return jax.tree.unflatten(self._answer, [parts[0] for parts in results])

    def keep(self) -> None:
        """Write it to its file, if it is not there yet."""
        if self._file is not None:
            _write(self._file, self._content)
        self._content, self._file = b"", None


def _checksum(header: bytes, code: bytes) -> str:
    return hashlib.sha256(header + code).hexdigest()


def _attempt(load: Callable[[], _Program], leaves: Sequence[Any]) -> tuple[_Program, Any] | None:
    """A program and its first answer, if it works. What works is kept."""
    try:
        program = load()
        answer = jax.block_until_ready(program(leaves))
        program.keep()
        return program, answer
    except _NotKept:
        raise
    # A file from elsewhere, or a runtime that cannot do with it: compiled anew, if it is the program's own fault.
    except Exception:
        return None


def _read(file: Path) -> _Program:
    content = file.read_bytes()
    if not content:
        raise _NotKept("it did not work before")
    return _Program(content)


def _make(file: Path, jitted: Any, args: Sequence[Any], always: bool) -> _Program:
    """Trace and compile a program that is to be kept in this file."""
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
    if not (file.parent.is_dir() and os.access(file.parent, os.W_OK)):
        raise _NotKept("there is no place for it")
    start = time.perf_counter()
    traced = jitted.trace(*args)
    lowered = traced.lower()
    compiled = lowered.compile()
    if not always and time.perf_counter() - start < _setting("persistent_cache_min_compile_time_secs"):
        raise _NotKept("made too quickly to be worth it")
    if any(aval.weak_type for aval in traced.jaxpr.out_avals):
        raise _NotKept("weak types of results are forgotten")
    if "custom_call_target" in compiled.as_text():
        raise _NotKept("other libraries have to be loaded for it")
    structure = jax.tree.structure(lowered.out_info)
    answer = _describe(jax.tree.unflatten(structure, [_LEAF] * structure.num_leaves), lambda leaf: "leaf")
    if _structure(answer) != structure:
        raise _NotKept("its answer cannot be put together again")
    wanted = sorted(compiled._executable._kept_var_idx)
    executable = compiled.runtime_executable()
    if compiled._params.const_args or len(wanted) != len(executable.get_parameter_layouts()):
        raise _NotKept("it wants more than its arguments")
    header, code = json.dumps([wanted, answer]).encode(), _serialised(executable)
    if len(code) < _setting("persistent_cache_min_entry_size_bytes"):
        raise _NotKept("too small to be worth it")
    return _Program(b"\n".join([_checksum(header, code).encode(), header, code]), file)


def _serialised(executable: Any) -> bytes:
    """The code of a program; jaxlib 0.8 asks the client for it, later ones the program itself."""
    if hasattr(executable, "serialize"):
        return executable.serialize()
    return executable.client.serialize_executable(executable)


def _write(file: Path, content: bytes) -> None:
    """At once or not at all: others may be reading and writing the same file."""
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=file.parent, delete=False) as unfinished:
            unfinished.write(content)
        os.replace(unfinished.name, file)
