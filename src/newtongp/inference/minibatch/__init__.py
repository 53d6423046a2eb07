"""Inference in batches of rows, for sparse GPs: data larger than memory, and rows by the million.

A sparse posterior is that of the whitened inducing variables v, given the product t(v) of all sites (`alg:sgp`). A
batch needs no more than that and its own rows. There are two ways to go on from it.

- All sites stored: the sites of a batch take the place of their former selves in the product. Nothing is random about
  that but the order, so it comes to rest at the fixed point of `infer`, and its residuals are those of `infer`.
- Tied: only t(v) is stored. A batch's proposals, times N over its size, are an unbiased estimate of the next t(v), and
  ρ falls from step to step. Once the energy falls by no more than its own noise, passes over all rows at a fixed q take
  over: their energies and residuals are exact, so that no noise can end a run early, nor keep it from ending.

`product.py` has what is known of v and how rows see it, `full.py` and `tied.py` what one batch does in either way, and
`full_run.py` and `tied_run.py` how a run goes over the data. Both take the steps of `inference.steps`.
"""

from .run import BatchRun

__all__ = ["BatchRun"]
