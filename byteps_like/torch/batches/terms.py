"""What a user asks of batches by speed."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

from byteps_like.errors import InvalidArgumentError


@dataclass(frozen=True)
class ShareTerms:
    """See BatchShares, whose arguments these are. Raises InvalidArgumentError for values out of bounds."""

    batch: int
    smoothing: float = 0.3
    every: int = 1
    minimum: int = 1
    multiple: int = 1
    least_gain: float = 0.05

    def __post_init__(self) -> None:
        for name in ("batch", "every", "minimum", "multiple"):
            given = getattr(self, name)
            if isinstance(given, bool) or not isinstance(given, int) or given < 1:
                raise InvalidArgumentError(f"{name}={given!r} must be a whole number, at least 1")
        if self.batch % self.multiple:
            raise InvalidArgumentError(f"batch={self.batch} is not a multiple of multiple={self.multiple}")
        if not 0 < self.smoothing <= 1:
            raise InvalidArgumentError(f"smoothing={self.smoothing} must be above 0 and at most 1")
        if not 0 <= self.least_gain < 1:
            raise InvalidArgumentError(f"least_gain={self.least_gain} of a step's time must be at least 0 and below 1")

    @property
    def units(self) -> int:
        """Multiples in the batch."""
        return self.batch // self.multiple

    @property
    def least_units(self) -> int:
        """Multiples that each rank gets at least."""
        return math.ceil(self.minimum / self.multiple)

    def check(self, ranks: int) -> None:
        """Raises InvalidArgumentError if the batch does not suffice for so many ranks."""
        least = self.least_units * self.multiple
        if self.batch < ranks * least:
            raise InvalidArgumentError(
                f"batch={self.batch} is too small for {ranks} ranks of at least {least} samples each: take"
                f" {ranks * least} or more, or a smaller minimum or multiple"
            )

    def text(self) -> str:
        """As the user would write them."""
        return f"BatchShares({', '.join(f'{name}={value}' for name, value in asdict(self).items())})"
