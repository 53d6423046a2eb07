"""Reading x and y: checks against a model, columns by name, chunks of rows, and memory estimates."""

from .chunks import ParquetChunks
from .data import Data

__all__ = ["Data", "ParquetChunks"]
