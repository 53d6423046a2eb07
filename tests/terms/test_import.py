"""Models without terms do not import them, nor what only tables and formulas need."""

import subprocess
import sys

CODE = """
import sys
import newtongp as ng
late = ["narwhals", "formulaic", "pandas", "polars", "pyarrow", "scipy.sparse", "newtongp.priors.additive"]
late += ["newtongp.terms.base", "newtongp.terms.smooth", "newtongp.terms.formula", "newtongp.terms.table"]
print(sorted(name for name in late if name in sys.modules))
ng.Model(ng.terms.Linear("age") + ng.terms.Group("clinic"), "poisson")
print(sorted(name for name in ("formulaic", "pandas", "narwhals") if name in sys.modules))
"""


def test_import_is_lean():
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:2] == ["[]", "[]"]
