"""The file format: one tree per file, without code, and checked before use.

A file consists of eight magic bytes, the version of the format (4 bytes), the length of the header (8), the header
(JSON: a tree of nodes, and the type and shape of every array), the arrays one after the other, and the SHA-256 of
everything before it. Numbers are little-endian. In a zip of arrays, names, sizes, compression and nested headers can
contradict each other. Here the position of every byte follows from the header, and their number must equal the size of
the file, which is checked before anything is allocated.
"""

import contextlib
import hashlib
import io
import json
import math
import os
import re
import secrets
import stat
import struct
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO

import numpy as np

from .._runtime.version import __version__
from ..validation.arguments import file_name
from ..validation.text import short
from .errors import FileFormatError
from .registry import by_name
from .trees import DEEPEST, TYPES, Encoder, decode

# As in PNG: a byte above 127 and both kinds of line ends reveal a transfer in text mode.
_MAGIC = b"\x89NGP\r\n\x1a\n"
_VERSION = 1
_PREFIX = struct.Struct("<8sIQ")
_CHECKSUM = hashlib.sha256().digest_size
_LARGEST_HEADER = 2**22
_BRACKETS = 3 * DEEPEST + 10
"""The maximum nesting of JSON brackets in a tree of that depth."""
_CHUNK = 2**20


def write_file(path: Any, kind: str, payload: Any) -> None:
    """Write a tree of arrays, numbers and objects; `read_file` checks the `kind`.

    The file is written completely or not at all: an existing file is replaced at the very end.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_file(f"{folder}/pass.ngp", "checkpoint", {"rates": np.ones(2), "passes": 3})
    ...     read_file(f"{folder}/pass.ngp", "checkpoint")
    {'rates': array([1., 1.]), 'passes': 3}
    """
    target = _target(path)
    encoder = Encoder()
    tree = encoder.node(payload, kind, 0)
    try:
        decode(tree, encoder.arrays, encoder.yours.values())  # check that it can be loaded
    except FileFormatError as error:
        raise ValueError(f"{kind} cannot be saved: {error}") from None
    header = {
        "newtongp": __version__,
        "kind": kind,
        "arrays": [[array.dtype.str, list(array.shape)] for array in encoder.arrays],
        "tree": tree,
    }
    text = json.dumps(header, allow_nan=False, separators=(",", ":")).encode()
    if len(text) > _LARGEST_HEADER:
        raise ValueError(
            f"{kind} cannot be saved: what is not in arrays takes {len(text)} bytes, more than {_LARGEST_HEADER}: put "
            "lists of numbers into arrays"
        )
    digest = hashlib.sha256()
    with _replacing(target) as file:
        for piece in (_PREFIX.pack(_MAGIC, _VERSION, len(text)), text, *map(_bytes_of, encoder.arrays)):
            file.write(piece)
            digest.update(piece)
        file.write(digest.digest())


def read_file(path: Any, kind: str, classes: Iterable[Any] = ()) -> Any:
    """Read a tree written by `write_file`; FileFormatError for any other file."""
    given, name = by_name(classes), file_name(path)
    try:
        with _opened(name) as file:
            header = _read_header(file)
            if header["kind"] != kind:
                raise FileFormatError(f"it holds a {header['kind']}, not a {kind}")
            arrays = [_read_array(file, *declared) for declared in header["arrays"]]
        return decode(header["tree"], arrays, given.values())
    except FileFormatError as error:
        raise FileFormatError(f"{name!r} cannot be loaded: {error}") from None


def kind_of(path: Any) -> str:
    """The kind of a file that `write_file` wrote."""
    name = file_name(path)
    try:
        with _opened(name) as file:
            return _read_header(file)["kind"]
    except FileFormatError as error:
        raise FileFormatError(f"{name!r} cannot be loaded: {error}") from None


def _target(path: Any) -> str:
    """The path to write to, with links resolved."""
    target = os.path.realpath(file_name(path))
    if os.path.exists(target) and not os.path.isfile(target):
        raise ValueError(f"path must be the name of a file, but {file_name(path)!r} is not: choose another name")
    if not os.path.isdir(os.path.dirname(target)):
        raise ValueError(f"path is in a folder that does not exist, {os.path.dirname(target)!r}: create it first")
    return target


@contextlib.contextmanager
def _replacing(target: str) -> Iterator[BinaryIO]:
    """A file that replaces `target` once it is complete and on disk."""
    folder, name = os.path.split(target)
    temporary = os.path.join(folder, f".{name[:64]}.{secrets.token_hex(8)}.tmp")
    try:
        # Not with `tempfile`, whose files are not readable by others.
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)
        with open(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    with contextlib.suppress(OSError):  # not every system can open a folder
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextlib.contextmanager
def _opened(name: str) -> Iterator[BinaryIO]:
    # Checked first: opening a pipe would block until someone writes to it.
    if not stat.S_ISREG(os.stat(name).st_mode):
        raise FileFormatError("it is not a file")
    with open(name, "rb") as file:
        yield file


_FOREIGN = "it is not a newtongp file: files for newtongp.load are written by result.save"
_DAMAGED = "the file is damaged or incomplete (its checksum is wrong): copy it again from the original"


def _read_header(file: BinaryIO) -> dict[str, Any]:
    """The header, checked against the file; the file is then at the start of the arrays."""
    size = file.seek(0, io.SEEK_END)
    file.seek(0)
    prefix = file.read(_PREFIX.size)
    if not prefix.startswith(_MAGIC):
        raise FileFormatError(_FOREIGN)
    if size < _PREFIX.size + _CHECKSUM:
        raise FileFormatError(_DAMAGED)
    _, version, length = _PREFIX.unpack(prefix)
    if version != _VERSION:
        raise FileFormatError(
            f"it has version {version} of the format, but this newtongp reads version {_VERSION}: load it with the "
            "newtongp that wrote it, or a newer one"
        )
    room = size - _PREFIX.size - _CHECKSUM
    if length > min(room, _LARGEST_HEADER) or not _is_whole(file, size):
        raise FileFormatError(_DAMAGED)
    file.seek(_PREFIX.size)
    header = _parse(file.read(length))
    declared = sum(_size(*array) for array in header["arrays"])
    if declared != room - length:
        raise FileFormatError(f"its arrays would take {declared} bytes, but it has {room - length}")
    for _, shape in header["arrays"]:
        # An array without entries takes no bytes, whatever its other dimensions.
        if any(side > size for side in shape):
            raise FileFormatError(f"it has an array of shape {tuple(shape)}, larger than the file")
    return header


def _is_whole(file: BinaryIO, size: int) -> bool:
    digest, left = hashlib.sha256(), size - _CHECKSUM
    file.seek(0)
    while left > 0:
        piece = file.read(min(left, _CHUNK))
        if not piece:
            return False
        digest.update(piece)
        left -= len(piece)
    return file.read(_CHECKSUM + 1) == digest.digest()


_STRING_OR_BRACKET = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[{]|[\]}]')


def _parse(text: bytes) -> dict[str, Any]:
    """Parse the header of a file and check its form."""
    depth = 0
    for token in _STRING_OR_BRACKET.finditer(text):
        depth += {b"[": 1, b"{": 1, b"]": -1, b"}": -1}.get(token[0], 0)
        if depth > _BRACKETS:
            raise FileFormatError(f"its objects are nested more than {DEEPEST} deep")
    try:
        header = json.loads(text, object_pairs_hook=_without_repeats, parse_constant=_no_constant)
    except ValueError as error:
        raise FileFormatError(f"its header cannot be read ({error})") from None
    match header:
        case {"newtongp": str(), "kind": str(), "arrays": list(arrays), "tree": _, **rest} if not rest:
            for array in arrays:
                match array:
                    case [str(), list(shape)] if len(shape) <= 16 and all(map(_is_count, shape)):
                        pass
                    case _:
                        raise FileFormatError(f"it declares an array as {short(array)}")
            return header
    raise FileFormatError("its header does not have the expected parts")


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    unique = dict(pairs)
    if len(unique) != len(pairs):
        raise ValueError("a name occurs twice")
    return unique


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a number in JSON")


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _dtype(spelled: str) -> np.dtype:
    if not TYPES.fullmatch(spelled):
        raise FileFormatError(f"it has an array of type {short(spelled)}, which is not a type of numbers or times")
    try:
        return np.dtype(spelled)
    except (TypeError, ValueError) as error:
        raise FileFormatError(f"it has an array of a type that does not exist ({error})") from None


def _size(spelled: str, shape: list[int]) -> int:
    return _dtype(spelled).itemsize * math.prod(shape)


def _read_array(file: BinaryIO, spelled: str, shape: list[int]) -> np.ndarray:
    try:
        array = np.empty(shape, dtype=_dtype(spelled))
    except ValueError as error:
        raise FileFormatError(f"it has an array of shape {tuple(shape)}, which cannot be allocated ({error})") from None
    raw = _bytes_of(array)
    if file.readinto(raw) != raw.nbytes:  # pyright: ignore[reportAttributeAccessIssue]
        raise FileFormatError(_DAMAGED)
    if array.dtype.kind == "b" and np.any(raw > 1):
        raise FileFormatError("it has booleans that are neither true nor false")
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def _bytes_of(array: np.ndarray) -> Any:
    """The memory of an array."""
    return array.reshape(-1).view(np.uint8)
