"""One round of the weights that may travel as factors: what the ranks tell each other, and the sums in flight."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from byteps_like.collectives.api import CallOptions, CollectiveOperation, Group, Keeper, Traffic
from byteps_like.dtypes import DType
from byteps_like.errors import MismatchError
from byteps_like.torch.calls.two_steps import All, Staged
from byteps_like.torch.device.inflight import call_all
from byteps_like.torch.factors.choice import next_rows
from byteps_like.torch.factors.layer import DISCARDS, LEFT, PRESENT, FactorLayer, FactorSum
from byteps_like.torch.gradients.bucket import Departed
from byteps_like.torch.gradients.controls import THREW_AWAY

_WORDS = 3


class FactorRound:
    """A round of `layers`, in one order on all ranks, in which all that have left their buckets are sent: a Landing.

    Agreement costs no round trip of its own: beside the gradients, the ranks gather how many rows each had, of layers
    in buckets, too, and all work out from that how the next round goes. They also see what could not be sent as
    factors, whose matrices they then reduce, among the workers on any route.

    On the wire: 12 bytes per layer and rank of words; sum(rows) (M+N) elements gathered per layer that has left its
    bucket; and its matrix, where some rank has something left.
    """

    data = None
    """See Landing. Operations keep their own memory."""
    commits = range(1)
    """See Landing. With the words it is known that no rank threw the round away."""

    def __init__(self, layers: Sequence[FactorLayer], lane: Group, label: str, discard: bool) -> None:
        self._layers, self._lane, self._label = layers, lane, label
        self.slots = [layer.sum for layer in layers if layer.sum is not None]
        for index, slot in enumerate(self.slots):
            slot.index = index
        self._own = [layer.sum for layer in layers]
        self._words = torch.zeros(lane.size, len(layers), _WORDS, dtype=torch.int32, device="cpu")
        self._words[lane.rank] = torch.tensor([layer.word(discard) for layer in layers], dtype=torch.int32)
        self._told = Staged(self._send_words(), self._reduce_rests)

    def _send_words(self) -> CollectiveOperation:
        source, target = self._words[self._lane.rank].data_ptr(), self._words.data_ptr()
        counts, options = [len(self._layers) * _WORDS] * self._lane.size, CallOptions(traffic=Traffic.CONTROL)
        flight = self._lane.all_gather(source, target, counts, DType.INT32, options)
        flight.on_done(Keeper(self._words))
        return flight

    def _reduce_rests(self) -> All:
        """Once the words are here, on any thread: not if some rank throws the round away."""
        if self._raised(DISCARDS).any():
            return All([])
        left = self._raised(LEFT).any(dim=0).tolist()
        with torch.no_grad():
            return All([own.reduce_rest() for own, any_left in zip(self._own, left, strict=True) if own and any_left])

    def _raised(self, flag: int) -> torch.Tensor:
        """Whether rank r (dimension 0) has raised it for a layer (dimension 1)."""
        return (self._words[:, :, 2] & flag).bool()

    # It lands as one, or by its slots

    def wait(self) -> None:
        """Blocks until all has landed. Raises the first error, after waiting for all."""
        call_all([self._told.wait, *(slot.flight.wait for slot in self.slots)])

    def check_agreed(self) -> None:
        """See Landing."""
        discarding = self._raised(DISCARDS).any(dim=1).tolist()
        if any(discarding) and not all(discarding):
            named = [rank for rank, it in enumerate(discarding) if it]
            raise MismatchError(f"{self._label}: ranks {named} {THREW_AWAY}")

    def land(self) -> None:
        """Makes the reduced gradients every `p.grad`."""
        for slot, present in zip(self.slots, self.present(), strict=True):
            self.land_one(slot, present)

    def present(self) -> list[bool]:
        """See Landing."""
        known = self._raised(PRESENT).any(dim=0).tolist()
        return [known[number] for number, own in enumerate(self._own) if own is not None]

    def land_one(self, slot: FactorSum, present: bool) -> None:
        """See Landing."""
        if present:
            slot.land()

    def priority(self, run: range) -> int:
        """See Landing."""
        del run
        return 0

    def sparse(self) -> Sequence[FactorSum]:
        """See Landing. None."""
        return ()

    def depart(self) -> Departed:
        """Hands over what is in flight."""
        return Departed(self, [(self.commits, self._told), *((slot.parts, slot.flight) for slot in self.slots)])

    def plan(self) -> bool:
        """It has landed: works out what each rank has room for in the next one. False, and nothing has been done, if a
        rank threw it away."""
        if self._raised(DISCARDS).any():
            return False
        rows, codes = self._words[:, :, 0].T.tolist(), self._words[:, :, 1].T.tolist()
        present = self._raised(PRESENT).T.tolist()
        for number, layer in enumerate(self._layers):
            used = [code for code, there in zip(codes[number], present[number], strict=True) if there]
            layer.plan(next_rows(layer.rows, rows[number]), used)
        return True
