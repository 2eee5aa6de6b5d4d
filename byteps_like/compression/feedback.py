"""What is added to a gradient before it is encoded, and kept of it afterwards: error feedback and momentum.

Error feedback: Seide et al., "1-Bit Stochastic Gradient Descent" (Interspeech 2014); scaled where the learning rate
changes, as in Zheng et al., "Communication-Efficient Distributed Blockwise Momentum SGD with Error-Feedback" (NeurIPS
2019), which has the Nesterov form of momentum, too. Momentum correction and factor masking: Lin et al., "Deep Gradient
Compression" (ICLR 2018).
"""

from __future__ import annotations

from dataclasses import dataclass

from byteps_like.compression.codec import Floats


@dataclass
class Compensation:
    """The arrays of one tensor, or a stretch of them, fp32 and as long as the gradient; None: none. Not thread-safe."""

    residual: Floats | None = None
    momentum: Floats | None = None
    mu: float = 0.0
    nesterov: bool = False
    masked: bool = False
    """The momentum of what was sent begins again."""
    scale: float = 1.0
    """Of the residual, at the next encoding."""

    def part(self, where: slice) -> Compensation:
        """The same for a stretch: views."""
        residual = None if self.residual is None else self.residual[where]
        momentum = None if self.momentum is None else self.momentum[where]
        return Compensation(residual, momentum, self.mu, self.nesterov, self.masked, self.scale)

    def before(self, x: Floats) -> None:
        """Makes of a gradient what is to be encoded, in place."""
        import byteps_like._core as _core  # not where there is none: portable workers

        _core.compensate(x, self.residual, self.momentum, self.mu, self.nesterov, self.scale)
        if self.residual is not None:
            self.scale = 1.0

    def after(self, x: Floats) -> None:
        """Once `x` is encoded and `residual` is what of it was not.

        What isn't finite is in this round's result, for a loss scaler to see; it must not come back for ever.
        """
        import byteps_like._core as _core

        _core.settle(x, self.residual, self.momentum, self.masked)
