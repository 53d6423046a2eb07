"""All compiled programs on disk, if the user asks for it: those of newtongp are there anyway (`saved_programs.py`)."""

import os
from pathlib import Path
from typing import Any

import jax
from jax.experimental.compilation_cache import compilation_cache

from . import saved_programs

_LARGEST = 2 * saved_programs.LARGEST


def use_cache(folder: Any = None, max_bytes: int = _LARGEST) -> Path:
    """Keep all compiled programs in a folder, and load them from there in later processes. Returns the folder.

    By default it is `newtongp` in the user's cache folder. newtongp keeps its own programs there in any case, and later
    processes neither trace nor compile them; the environment variable `NEWTONGP_CACHE` names another folder for them,
    or is "off". After this call they are compiled for speed, since that is done only once. All others, such as those
    with your own classes, are then in JAX's own persistent cache, which belongs to the process: it serves all programs
    that JAX compiles, not only those of newtongp. Each of the two takes half of `max_bytes`; the programs that have not
    been used for the longest time are removed. Several processes may share the folder. Programs from a cache are run
    without checks, so the folder must not be writable for anyone you do not trust; newtongp's own must belong to you
    alone.
    """
    try:
        path = saved_programs.user_folder() if folder is None else Path(folder).expanduser().absolute()
    except TypeError:
        raise ValueError(f"folder must be the name of a folder, got {folder!r}: leave it out for the default") from None
    if isinstance(max_bytes, bool) or not isinstance(max_bytes, int) or max_bytes < 1:
        raise ValueError(f"max_bytes must be a whole number of at least 1, got {max_bytes!r}: leave it out for 1 GiB")
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", error)
        raise ValueError(f"folder {str(path)!r} cannot be made ({reason}): name another folder") from None
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        raise ValueError(f"folder {str(path)!r} cannot be written to: name another folder")
    saved_programs.save_programs(path / "programs", max_bytes // 2)
    settings = {
        "jax_enable_compilation_cache": True,
        "jax_compilation_cache_dir": str(path),
        "jax_compilation_cache_max_size": max_bytes - max_bytes // 2,
        # Programs of newtongp are many and small: most compile in less than JAX's default of one second.
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_min_entry_size_bytes": 0,
    }
    for name, value in settings.items():
        jax.config.update(name, value)
    # JAX opens its cache once, and would go on with the folder of an earlier call.
    compilation_cache.reset_cache()
    return path
