"""The tensors that the workers have agreed on: who declared what, and where it was placed. Pure."""

from __future__ import annotations

import re
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

from byteps_like.control.bounds import MOST_NAMES, MOST_PARTS, room
from byteps_like.control.placing.placement import Placer
from byteps_like.control.placing.staying import Former
from byteps_like.control.types import Move, View
from byteps_like.errors import InvalidArgumentError, MismatchError
from byteps_like.wire.frame import PARTITION_KEY, PRELUDE_KEY, SHARE_SHIFT
from byteps_like.worker.api import TWOWAY, Declared, TensorSpec, first_difference


@dataclass
class _Entry:
    declared: Declared
    """As it was placed at first, which is where every rank begins."""
    newest: Declared
    """As it was placed last."""
    members: list[int] = field(default_factory=list)
    """Who has declared it, by member number."""
    retired: set[int] = field(default_factory=set)
    """Of these, who won't use it any more."""
    moved: deque[int] = field(default_factory=deque)
    """Tensor ids of the newest places that it has moved to."""


@dataclass(frozen=True)
class PlacedTensor:
    """A tensor of the table: as it was placed at first and last, and ids of where it has moved to last."""

    first: Declared
    newest: Declared
    moved: tuple[int, ...] = ()


_PLACES_NAMED = 3
"""That a tensor has moved to: while ranks move one after the other, texts may speak of the one before."""


class Declarations:
    """The job's table. The first to declare a name decides; the others must agree in dtype, shape and codec.

    Workers are known by member number. What none of the view in force uses any more is let go of: hence an epoch,
    whose workers are all new, begins with an empty table.
    """

    def __init__(self, view: View, placer: Placer) -> None:
        self._view, self._placer = view, placer
        self._entries: dict[str, _Entry] = {}
        self._parts = 0
        self._uses = defaultdict[int, set[int]](set)
        """By member, ids of the tensors that it has declared and is not done with."""
        self.touched: set[int] = set()
        """Ids of tensors of which something has changed that the next scheduler must know; whoever stores it empties
        it."""
        self.users: set[int] = set()
        """Members whose uses have changed; likewise."""
        self._kept = Counter[str]()
        """How many tensors that servers keep there are of each `on_loss`."""
        self._lone = 0
        """How many of these one server alone has."""
        self._residual = 0
        """How many tensors there are whose servers keep error feedback."""
        self._names: dict[int, str] = {}
        """By tensor id, those of the last places that tensors have left included."""
        self._next_id = 0
        self._left: dict[str, Former] = {}
        """By name, what servers kept that nobody uses any more in this view,"""
        self._before: dict[str, Former] = {}
        """and in the one before, from which it may go on."""

    def follow(self, view: View) -> None:
        """`view` is in force from now on; who is not in it uses nothing any more. Where servers have changed, `replan`
        comes next."""
        self._end_view(view)
        if self._left:  # else nobody has come to use it again: the next view may
            self._before, self._left = self._left, {}
        self._view = view

    def _end_view(self, view: View) -> None:
        left = {member for entry in self._entries.values() for member in entry.members}.difference(view.ranks)
        self._end_uses(left | (self._uses.keys() - view.ranks.keys()))
        for entry in list(self._entries.values()):
            entry.members = [member for member in entry.members if member not in left]
            entry.retired -= left
            self._remember(entry)
            self._let_go_if_unused(entry)

    def leave_out(self, gone: Set[int]) -> None:
        """These have died or left, and the others go on: what these are done with is let go of. What only `gone` have
        declared stays, since the others may yet come to it."""
        if self._uses.keys().isdisjoint(gone):
            return
        self._end_uses(gone)
        for entry in list(self._entries.values()):
            if any(member not in gone for member in entry.members):
                entry.members = [member for member in entry.members if member not in gone]
                self._remember(entry)
                self._let_go_if_unused(entry)

    def _end_uses(self, gone: Set[int]) -> None:
        self.users |= self._uses.keys() & gone
        self._uses = defaultdict(set, {member: ids for member, ids in self._uses.items() if member not in gone})

    def declare(self, member: int, specs: Sequence[TensorSpec]) -> list[Declared]:
        """Partitions of each spec, in order. Raises MismatchError naming what each rank declared under the name."""
        for spec in specs:
            if spec.details:  # first, as it says the most of what differs
                self._check(member, spec)
        return [self._declare(member, spec) for spec in specs]

    @property
    def next_id(self) -> int:
        """That of the next place."""
        return self._next_id

    def uses(self, member: int) -> list[int]:
        """Ids of the tensors that it has declared and is not done with."""
        return sorted(self._uses.get(member, ()))

    def placed(self, number: int) -> PlacedTensor | None:
        """What was first declared as this tensor; None: there is none any more."""
        entry = self._entries.get(self._names.get(number, ""))
        if entry is None or entry.declared.tensor_id != number:
            return None
        return PlacedTensor(entry.declared, entry.newest, tuple(entry.moved))

    def resume(self, tensors: Iterable[PlacedTensor], uses: Mapping[int, Iterable[int]], next_id: int) -> None:
        """Goes on from another scheduler's table, as `placed`, `uses` and `next_id` gave it; before anything else."""
        by_id = {}
        for one in tensors:
            by_id[one.first.tensor_id] = entry = _Entry(one.first, one.newest, moved=deque(one.moved))
            self._entries[one.first.spec.name] = entry
            self._count_kept(one.first.spec, 1)
            self._parts += len(one.newest.partitions)
            self._placer.take(one.newest)
            for number in (one.first.tensor_id, *one.moved):
                self._names[number] = one.first.spec.name
        for member, ids in uses.items():
            for number in ids:
                by_id[number].members.append(member)
                self._uses[member].add(number)
        self._next_id = next_id

    def replan(self, placer: Placer) -> tuple[Move, ...]:
        """Places all tensors anew, and from now on new ones, by `placer`; ranks move one after the other, in step."""
        self._placer = placer
        moves = [self._move(entry) for entry in self._entries.values()]
        return tuple(move for move in moves if move.partitions)

    def place_by(self, placer: Placer) -> None:
        """New tensors are placed by `placer` from now on; all others stay."""
        for entry in self._entries.values():
            placer.take(entry.newest)
        self._placer = placer

    @property
    def can_lose_servers(self) -> bool:
        """Whether others can take over what a server has: sums, which workers can bring again, and values of which
        there are copies."""
        return self.can_hand_over and not self._lone

    @property
    def can_hand_over(self) -> bool:
        """Whether others could have all that a server has before it leaves: error feedback of codecs they can't."""
        return self._view.finishes_sums and not self._residual

    @property
    def keeps_values(self) -> bool:
        """Whether servers do, not only sums: also what was kept in the view before, and what the next one may keep."""
        return bool(self._left or self._before) or any(count for on_loss, count in self._kept.items() if on_loss)

    def _count_kept(self, spec: TensorSpec, by: int) -> None:
        self._kept[spec.on_loss] += by
        self._lone += by if spec.on_loss and spec.replicas < 2 else 0
        self._residual += by if spec.codec.startswith(TWOWAY) else 0

    def retire(self, member: int, tensors: Sequence[int]) -> None:
        """`member` won't use the names of these any more. What no rank uses any more is let go of."""
        for number in tensors:
            entry = self._entries.get(self._names.get(number, ""))
            if entry is None or entry.declared.tensor_id != number:
                continue
            entry.retired.add(member)
            self._uses[member].discard(number)
            self.users.add(member)
            self._let_go_if_unused(entry)

    def _remember(self, entry: _Entry) -> None:
        """What servers keep may go on in the next view."""
        spec = entry.declared.spec
        if spec.on_loss and self._view.finishes_sums and entry.retired.issuperset(entry.members):
            self._left[spec.name] = Former.of(entry.newest, self._placer.servers)

    def _let_go_if_unused(self, entry: _Entry) -> None:
        if not entry.retired.issuperset(entry.members):
            return
        del self._entries[entry.declared.spec.name]
        self.touched.add(entry.declared.tensor_id)
        self._count_kept(entry.declared.spec, -1)
        self._parts -= len(entry.newest.partitions)
        self._placer.leave(entry.newest)
        for number in (entry.declared.tensor_id, *entry.moved):
            self._names.pop(number, None)

    @property
    def can_lose_workers(self) -> bool:
        """Whether those who live can go on when a worker has died: with tensors that servers keep if all of these are
        declared so, and with sums if servers finish them."""
        goes_on = self._kept["finish"] > 0 or self._view.finishes_sums
        return goes_on and self._kept["raise"] == 0

    def name_keys(self, text: str) -> str:
        """`text` with names for the keys in it: servers know keys only."""
        return name_keys(text, self._names)

    def names(self, tensors: Iterable[int]) -> dict[int, str]:
        """By tensor id, of those that there are."""
        return {number: self._names[number] for number in tensors if number in self._names}

    def _place(self, spec: TensorSpec) -> Declared:
        number, self._next_id = self._next_id, self._next_id + 1
        room("tensors of this epoch", len(self._names) + 1, MOST_NAMES)
        declared = self._placed(number, spec)
        self._parts += len(declared.partitions)
        room("partitions of this epoch's tensors", self._parts, MOST_PARTS)
        self._names[number] = spec.name
        return declared

    def _placed(self, number: int, spec: TensorSpec) -> Declared:
        if not spec.beside:
            before = self._before.pop(spec.name, None) if spec.on_loss else None
            if before is not None and before.is_of(spec):
                return self._placer.place_again(number, spec, before)
            return self._placer.place(number, spec)
        other = self._entries.get(spec.beside)
        if other is None:
            raise InvalidArgumentError(
                f"can't place tensor {spec.name!r} beside {spec.beside!r}: no rank has declared that"
            )
        return self._placer.place_beside(number, spec, other.newest)

    def _move(self, entry: _Entry) -> Move:
        self._parts -= len(entry.newest.partitions)  # to another placer, which knows nothing of it
        spec = entry.declared.spec
        if spec.beside not in self._entries:  # that is not in use any more
            spec = replace(spec, beside="")
        entry.newest = self._place(spec)
        self.touched.add(entry.declared.tensor_id)
        entry.moved.append(entry.newest.tensor_id)
        if len(entry.moved) > _PLACES_NAMED:
            del self._names[entry.moved.popleft()]
        return Move(entry.declared.tensor_id, entry.newest.tensor_id, entry.newest.partitions)

    def _declare(self, member: int, spec: TensorSpec) -> Declared:
        self._check(member, spec)
        entry = self._entries.get(spec.name)
        if entry is None:
            placed = self._place(spec)
            entry = self._entries[spec.name] = _Entry(placed, placed)
            self._count_kept(spec, 1)
            self.touched.add(placed.tensor_id)
        if member not in entry.members:
            entry.members.append(member)
        entry.retired.discard(member)
        self._uses[member].add(entry.declared.tensor_id)
        self.users.add(member)
        return entry.declared

    def _check(self, member: int, spec: TensorSpec) -> None:
        entry = self._entries.get(spec.name)
        if entry is None:
            return
        first = entry.declared.spec
        if _agreed(first) != _agreed(spec):
            ranks = sorted(self._view.ranks[other] for other in entry.members)
            raise _mismatch(spec, self._view.ranks[member], first, ranks)


def name_keys(text: str, names: Mapping[int, str]) -> str:
    """`text` with what users know for each "key N" in it, given names by tensor id: "'layer.weight' (partition 3)"."""

    def describe(found: re.Match[str]) -> str:
        whole = int(found[1]) & ~PRELUDE_KEY
        key, share = whole & PARTITION_KEY, whole >> SHARE_SHIFT
        name = names.get(key >> 16)
        which = f"partition {key & 0xFFFF}" + (f", share {share - 1}" if share else "")
        return found[0] if name is None else f"{name!r} ({which})"

    return re.sub(r"\bkey (\d+)", describe, text)


def _mismatch(spec: TensorSpec, rank: int, first: TensorSpec, ranks: list[int]) -> MismatchError:
    """Of `rank`, which declared `spec`, with `ranks`, which had declared `first` under that name."""
    others = f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
    alone = ranks == [rank]
    hint = "use another name for the other tensor" if alone else "give one tensor one name on all ranks"
    own, theirs = _show(spec), _show(first)
    if differing := first_difference([spec.details, first.details]):
        own, theirs = (f"{line} there" for line in differing)
        hint = "all ranks must have the same parameters"
    return MismatchError(
        f"tensor {spec.name!r}: rank {rank} declared {own}, but {others} declared {theirs}; {hint}",
        rank=rank,
        key=spec.name,
        operation="declare",
    )


def _agreed(spec: TensorSpec) -> tuple[object, ...]:
    """What all ranks must declare alike."""
    return spec.dtype, spec.shape, spec.codec, spec.on_loss, spec.replicas


def _show(spec: TensorSpec) -> str:
    codec = f" by codec {spec.codec}" if spec.codec else ""
    kept = f" with on_loss={spec.on_loss!r}" if spec.on_loss else ""
    copied = f", replicas={spec.replicas}" if spec.replicas > 1 else ""
    return f"{spec.dtype.name.lower()} {list(spec.shape)}{codec}{kept}{copied}"
