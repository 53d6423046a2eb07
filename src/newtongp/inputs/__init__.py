"""x and y as users give them: reading them against a model, columns by name, chunks of rows, and memory."""

from .chunks import ParquetChunks
from .data import Data

__all__ = ["Data", "ParquetChunks"]
