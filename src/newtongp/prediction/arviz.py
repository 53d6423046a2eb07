"""Draws from a result as ArviZ data: latents, replicated data, observed data and log likelihoods."""

from typing import Any

import jax
import numpy as np

from .._runtime.double import in_double
from .._runtime.version import __version__
from ..inputs.memory import require
from ..results.result import Result
from ..validation.arguments import as_key, whole
from .integrals import draw_outputs, explained, log_likelihoods

_NUMBER = 8.0  # bytes


@in_double
def to_arviz(result: Result, draws: int, chains: int, key: Any) -> Any:
    """Independent draws at the rows of the data, as an `xarray.DataTree` with the groups of ArviZ."""
    arviz_base, xarray = _libraries()
    shape = whole(chains, "chains"), whole(draws, "draws")
    n = shape[0] * shape[1]
    if result.data is None:
        raise ValueError("to_arviz needs the rows of the data, which were read in chunks and not kept: use arrays")
    data, latents, outputs = result.data, result.model.likelihood.num_latents, result.model.likelihood.num_outputs
    rows = data.x.shape[0]
    # f, y and log p(y | f), each once more while it is computed, and the numbers of rows and draws
    numbers = n * rows * (2 * latents + 3 * outputs + 5)
    require(_NUMBER * numbers, f"{n} draws of {rows} rows", "take fewer, as in to_arviz(draws=100)")
    key_f, key_y = jax.random.split(as_key(key))
    likelihood = data.likelihood(result.model.likelihood)
    with explained():
        f = result.posterior.draw(key_f, data.x, n)
        log_likelihood = log_likelihoods(likelihood, data.y, f)
        try:
            replicated = draw_outputs(result.model.likelihood, key_y, f)
        except NotImplementedError:  # a likelihood of one's own without `sample`
            replicated = None
    every, seen = np.arange(rows), np.flatnonzero(data.observed)

    def group(name: str, values: Any, row: np.ndarray, last: str | None = None, *, drawn: bool = True) -> Any:
        """One variable over the rows in `row`, with a dimension `last` if it has more than one entry per row."""
        array = np.asarray(values)
        array = array.reshape(shape + array.shape[1:]) if drawn else array
        dims = ["row"]
        if last and array.shape[-1] == 1:
            array = array[..., 0]
        elif last:
            dims.append(last)
        return arviz_base.dict_to_dataset(
            {name: array},
            coords={"row": row},
            dims={name: dims},
            sample_dims=["chain", "draw"] if drawn else [],
            attrs={"inference_library": "newtongp", "inference_library_version": __version__},
        )

    groups = {
        "posterior": group("f", f, every, "latent"),
        "log_likelihood": group("y", log_likelihood[:, seen], seen),
        "observed_data": group("y", data.outputs[seen], seen, "output", drawn=False),
    }
    if replicated is not None:
        groups["posterior_predictive"] = group("y", replicated[:, seen], seen, "output")
    return xarray.DataTree.from_dict(groups)


def _libraries() -> tuple[Any, Any]:
    try:
        import arviz_base  # pyright: ignore[reportMissingImports]
        import xarray  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ImportError('to_arviz needs arviz-base: pip install "newtongp[arviz]"') from error
    return arviz_base, xarray
