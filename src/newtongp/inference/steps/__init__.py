"""Step sizes: how far the sites move towards the proposal, and when a trial is rejected."""

from .backtracking import Backtracking
from .base import Move, Outcome, Step, Verdict
from .constant import Constant
from .damped import Damped
from .double_loop import DoubleLoop

__all__ = ["Backtracking", "Constant", "Damped", "DoubleLoop", "Move", "Outcome", "Step", "Verdict"]
