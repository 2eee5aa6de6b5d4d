"""GPU kernels and the devices that run them. Imports neither torch nor CuPy before they are needed.

The kernels are csrc/cuda/*.cu; in a wheel they lie in byteps_like/cuda/kernels.

Private: kernels, recipes.
"""

from byteps_like.cuda.device import why_not
from byteps_like.cuda.kernels import handles

__all__ = ["handles", "why_not"]
