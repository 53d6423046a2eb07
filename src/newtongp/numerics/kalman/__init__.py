"""Filters and smoothers for chains of Gaussian states: arrays in, arrays out.

`chain` defines the layout of a chain; `algebra`, `unrolled` and `arrays` the small matrices of one step; `recursions`
one step of the filter and the smoother; `chunks` runs them on many pieces of the chain at once; `information` is the
backward information filter; `intervals` chains with factors of two neighbouring states; `roots` the square root form
for very precise sites; `loops` makes XLA compile a loop as one kernel.
"""

from .chain import (
    Chain,
    block_diagonal,
    choose_pieces,
    cut,
    from_time,
    in_time,
    make_chain,
    observation_rows,
    positions,
    time_of,
    to_time,
)
from .intervals import (
    Factors,
    Intervals,
    Moments,
    condition_intervals,
    conditionals,
    draw_intervals,
    forward_intervals,
    log_integral,
)
from .loops import plain_loops
from .normaliser import log_normaliser
from .paths import draw_paths, forward, joint_covariance, joint_of_rows, with_marginals
from .recursions import Step, predict_step, update_step
from .roots import Forward, careful_forward, careful_states
from .scalar_sites import scalar_sites
from .smoother import (
    ChainPosterior,
    Smoothed,
    States,
    is_lossy,
    is_negative,
    largest,
    marginals,
    marginals_and_states,
    not_below_rounding,
    predicted,
    rounding_errors,
    seen_from_later,
    smoothed_states,
)

__all__ = [
    "Chain",
    "ChainPosterior",
    "Factors",
    "Forward",
    "Intervals",
    "Moments",
    "Smoothed",
    "States",
    "Step",
    "block_diagonal",
    "careful_forward",
    "careful_states",
    "choose_pieces",
    "condition_intervals",
    "conditionals",
    "cut",
    "draw_intervals",
    "draw_paths",
    "forward",
    "forward_intervals",
    "from_time",
    "in_time",
    "is_lossy",
    "is_negative",
    "joint_covariance",
    "joint_of_rows",
    "largest",
    "log_integral",
    "log_normaliser",
    "make_chain",
    "marginals",
    "marginals_and_states",
    "not_below_rounding",
    "observation_rows",
    "plain_loops",
    "positions",
    "predict_step",
    "predicted",
    "rounding_errors",
    "scalar_sites",
    "seen_from_later",
    "smoothed_states",
    "time_of",
    "to_time",
    "update_step",
    "with_marginals",
]
