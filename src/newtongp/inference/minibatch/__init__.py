"""Inference in batches of rows, for sparse GPs: data larger than memory, and rows by the million.

A sparse posterior is that of the whitened inducing variables v, given the product t(v) of all sites (`alg:sgp`). A
batch needs only t(v) and its own rows. There are two forms of storage.

- Full: all sites are stored, and the new sites of a batch replace its old ones in the product. Only the order of the
  rows is random, so the fixed point and the residuals are those of `infer`.
- Tied: only t(v) is stored. A batch's proposals, times N over its size, are an unbiased estimate of the next t(v), and
  ρ falls from step to step. When the energy falls by no more than its own noise, passes over all rows at a fixed q
  follow. Their energies and residuals are exact, so noise neither ends a run early nor keeps it from ending.

`product.py` has t(v), q(v) and the marginals of rows, `full.py` and `tied.py` the update of one batch, and
`full_run.py` and `tied_run.py` the passes over the data. Both use the steps of `inference.steps`.
"""

from .run import BatchRun

__all__ = ["BatchRun"]
