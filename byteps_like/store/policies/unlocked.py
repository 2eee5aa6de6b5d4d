"""No server and no locks: ranks of one host write to values that all of them have mapped.

Niu, Recht, Ré and Wright, "Hogwild!: a lock-free approach to parallelizing stochastic gradient descent", NeurIPS 2011.
"""

from __future__ import annotations

from dataclasses import dataclass

from byteps_like.store.policies.bounded import EachAtOnce


@dataclass(frozen=True)
class Hogwild(EachAtOnce):
    """Nobody ever waits, not even for another's write to the same element, one of which may be lost."""

    name = "hogwild"
