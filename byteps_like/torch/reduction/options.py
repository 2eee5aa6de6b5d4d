"""What a reducer is asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from byteps_like.torch.compression.rules import Rules
from byteps_like.torch.gradients.arena import Arena
from byteps_like.torch.gradients.parts import Scaling
from byteps_like.torch.gradients.slot import Slot


@dataclass(frozen=True)
class ReducerOptions:
    """How gradients travel and are summed: which `route` (see routes.ROUTES), over which ranks.

    `crossing`: the next forward waits for its own layers only, so those nearest to the input go first (see Arena).
    Sparse ones travel by their rows (sparse), beside the arenas; but as dense ones with `sparse_as_dense`, to be made
    sparse again, and, with a warning, where there are no collectives (portable workers).
    """

    rules: Rules = field(default_factory=Rules)
    scaling: Scaling = field(default_factory=Scaling)
    route: str = "auto"
    process_set: object = None
    sparse_as_dense: bool = False
    crossing: bool = False
    transform: Callable[[Arena, Slot], None] | None = None
    """What is made of a gradient before it is sent (see onebit_adam)."""
    only_on_host: str = ""
    """Why no gradient may be on a device; "": they may."""

    @property
    def switches(self) -> bool | None:
        """Whether codecs were asked for that can be left out; None: none can, as a transform counts on them."""
        return None if self.transform is not None else self.rules.codecs
