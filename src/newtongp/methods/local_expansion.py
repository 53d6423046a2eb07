"""What passes from looking at one row's likelihood to proposing its site."""

import equinox as eqx
from jaxtyping import Array, Float

from ..numerics.gaussian import Gaussian


class LocalExpansion(eqx.Module):
    """What a proposal needs of the likelihood around one row's marginal."""

    point: Gaussian
    """Where the target was expanded: the marginal, or the cavity, of what the site acts on."""
    gradient: Float[Array, "*rows D"]
    hessian: Float[Array, "*rows D D"]
    covariance_gradient: Float[Array, "*rows D D"] | None
    """Only for curvatures that look at the covariance too."""
    copies: Float[Array, "*rows"] | None = None
    """The number of copies that the row consists of, of each of which this is the expansion; None for 1."""
