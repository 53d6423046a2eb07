"""One call of `infer` in batches."""

from typing import Any

from ...inputs.chunks import Rows
from ...model import Model, without_weights
from ...priors.markov import MarkovGP
from ...priors.sparse import SparseGP
from ...results.result import Result
from ...validation.arguments import generator, tolerance
from ..compatibility import check_choices
from ..steps.base import Step
from ..steps.constant import Constant
from .checks import check_batches
from .full_run import run_full
from .problem import BatchedProblem
from .progress import RowProgress, explained
from .tied_run import run_tied


class BatchRun:
    """A problem in batches, with its step, tolerance and batch size."""

    def __init__(
        self, model: Model, x: Any, y: Any, method: Any, step: Step | None, batch_size: int | None, key: Any, tol: float
    ):
        chosen, _ = check_choices(model, method, None)
        chosen = check_batches(model, chosen, step, batch_size)
        assert isinstance(model.prior, SparseGP | MarkovGP) and (step is None or isinstance(step, Constant))
        self.step, self.tol = step, tolerance(tol)
        prior: Any = model.prior
        sample = prior.new_sample()
        rows = Rows(x, y, model, None if sample is None else sample.see)
        rng = generator(0 if key is None else key)
        inducing = prior.inducing_for(sample)
        self.problem = BatchedProblem(without_weights(model), rows, inducing, chosen, batch_size, rng)
        self.batched = batch_size is not None and batch_size < rows.count

    def run(self, max_steps: int, progress: bool) -> Result:
        """Run passes over the data, with the prior's form of storage."""
        problem = self.problem
        with RowProgress(progress, problem.rows.count, max_steps) as bar, explained():
            if problem.prior.storage == "tied":
                return run_tied(problem, self.step, self.batched, max_steps, self.tol, bar)
            return run_full(problem, self.step, max_steps, self.tol, bar)
