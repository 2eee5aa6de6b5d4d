"""One store key as a portable worker uses it: what it has pushed and wants to read, over any link. No I/O."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum, auto

from byteps_like.dtypes import DType
from byteps_like.errors import BytePSLikeError, CorruptError, InvalidArgumentError
from byteps_like.wire.crc32c import Buffer
from byteps_like.wire.frame import FrameFlag, FrameType, Header
from byteps_like.wire.note import NOTE_BYTES, Applied, Note, NoteBit, decode_ranks, encode_note
from byteps_like.worker.keeping import Outcome

NOBODY = 0xFFFFFFFF
"""As the root of a spec: the value begins as zeros. As the version that a reader has: none."""
CHANGES = 1
"""As the number of a SPEC: the key's policy is to become that of the spec."""
CHANGED = 2
"""As an OPENED says it: all ranks have asked for that policy."""
CLOCKS = 1 << 32
"""Clocks wrap on the wire."""

Frame = tuple[Header, Buffer]
Settled = Callable[[Outcome], None]
Opened = Callable[[BytePSLikeError | None], None]
"""Called once: the key has a value; or why it won't have one by this rank's doing."""


@dataclass(frozen=True, slots=True)
class LaneSpec:
    """A key, and what all ranks give alike for it."""

    key: int
    shard: int
    dtype: DType
    nbytes: int
    width: int
    """Elements of a row."""
    root: int
    """The rank that sets the first value; NOBODY: zeros."""
    text: str


class PushStage(Enum):
    """How far a contribution is on the link there is."""

    SENDS = auto()
    """Its next segment is due."""
    ASKS = auto()
    """A part of it may have arrived: how much is to be asked."""
    ASKED = auto()
    REPEATS = auto()
    """The server has it, but its answer may be lost: its note is to be sent again."""
    SENT = auto()
    """It is to be answered."""
    ANSWERED = auto()


@dataclass(eq=False, slots=True)
class LanePush:
    """A contribution. `data` stays as it is until `settled` is called with what became of it."""

    data: memoryview
    note: Note
    settled: Settled
    priority: int = 0
    clock: int = field(default=0, init=False)
    stage: PushStage = field(default=PushStage.SENDS, init=False)
    noted: bool = field(default=False, init=False)
    """Whether its note was sent on this link, or is known to have arrived."""
    sent: int = field(default=0, init=False)
    begun: bool = field(default=False, init=False)
    """Whether any of it was ever sent."""

    def new_link(self) -> None:
        """Nothing more is known than that it may have begun to arrive."""
        self.stage = PushStage.ASKS if self.begun and len(self.data) else PushStage.SENDS
        self.sent, self.noted = 0, False

    def go_on(self, offset: int) -> None:
        """So many bytes of it have arrived."""
        self.stage = PushStage.SENDS
        self.sent, self.noted = offset, offset > 0


@dataclass(eq=False, slots=True)
class LaneTick(LanePush):
    """A contribution of nothing: a clock goes by."""


def tick(note: Note, settled: Settled, priority: int = 0) -> LaneTick:
    """One."""
    return LaneTick(memoryview(b""), note, settled, priority)


@dataclass(eq=False, slots=True)
class LanePull:
    """A read of the whole value, at least of version `least`. `settled` is called when `out` has it; of what is
    `filtered`, `out` becomes memory of the length that the server tells."""

    out: memoryview
    settled: Settled
    least: int = 0
    priority: int = 0
    filtered: bool = False
    clock: int = field(default=0, init=False)
    got: int = field(default=0, init=False)
    version: int = field(default=0, init=False)
    """Of which it has got something."""


@dataclass(eq=False, slots=True)
class _Change:
    """Of the spec, that this rank waits for."""

    text: str
    changed: list[Opened] = field(default_factory=list)
    asked: bool = False


class _Door(Enum):
    SHUT = auto()
    """SPEC is due."""
    ASKED = auto()
    SETTING = auto()
    """This rank sends the first value."""
    LACKING = auto()
    """It should, but has none."""
    OPEN = auto()


class StoreLane:
    """All of one key, in the order in which it was asked for. One thread.

    Contributions go one after the other. Reads overtake them: the server keeps a read back until those before it have
    come. Of reads with as many contributions before them there is one at a time, since answers name them by that.
    """

    def __init__(self, spec: LaneSpec) -> None:
        self.spec = spec
        self._door = _Door.SHUT
        self._initial: LanePush | None = None
        """The first value, on the rank that sets it, until it is there."""
        self._openers: list[Opened] = []
        self._has_value = False
        self._clock = 0
        """Of the next contribution."""
        self._pushes: dict[int, LanePush] = {}
        """Those that are not answered by their clocks, the oldest first."""
        self._unsent: deque[LanePush] = deque()
        """Those of them that are not sent whole."""
        self._repeats: deque[LanePush] = deque()
        self._begun = 0
        """Contributions that have begun to be sent, and are not answered."""
        self._pulls: deque[LanePull] = deque()
        """Not asked for."""
        self._reading: dict[int, LanePull] = {}
        """Asked for, by clock."""
        self._change: _Change | None = None
        self.cut_off = False
        """Whether the server is about to make a version without the next contribution."""

    # What is asked of it

    def open(self, initial: memoryview | None, opened: Opened) -> None:
        """`opened` is called once the key has a value. `initial`: the first one, which stays until then."""
        if self._has_value:
            opened(None)
            return
        self._openers.append(opened)
        if initial is not None and self._initial is None:
            note = Note(bits=NoteBit.LAST_BLOCK | NoteBit.INITIAL)
            self._initial = LanePush(initial, note, lambda _: None)
        if self._door is _Door.LACKING:
            self._door = _Door.SHUT

    @property
    def has_value(self) -> bool:
        """Whether it was opened."""
        return self._has_value

    def change(self, text: str, changed: Opened) -> None:
        """Of a key that was opened: `changed` is called when its spec is that one, whose policy alone is another. Goes
        after what was asked before."""
        if self._change is None:
            if text == self.spec.text:
                changed(None)
                return
            self._change = _Change(text)
        if self._change.text != text:
            changed(InvalidArgumentError(f"store key {self.spec.key} waits for another change of its policy"))
            return
        self._change.changed.append(changed)

    def push(self, push: LanePush) -> None:
        """Queues a contribution."""
        self.cut_off = False
        push.clock = self._clock
        self._clock += 1
        self._pushes[push.clock % CLOCKS] = push
        self._unsent.append(push)

    def pull(self, pull: LanePull) -> None:
        """Queues a read, which sees all contributions that were queued before."""
        pull.clock = self._clock
        self._pulls.append(pull)

    def new_link(self) -> None:
        """Nothing is known to have arrived."""
        self._door = _Door.SHUT
        self._repeats.clear()
        if self._initial is not None:
            self._initial.new_link()
        for pull in self._reading.values():
            pull.got = 0
        self._pulls.extendleft(reversed(self._reading.values()))
        self._reading.clear()
        if self._change is not None:
            self._change.asked = False

    # What it has to say

    @property
    def excess(self) -> int:
        """Bytes of contributions that have begun and were not answered, beside those of the oldest."""
        return max(0, self._begun - 1) * self.spec.nbytes

    @property
    def current(self) -> LanePush | None:
        """The contribution, or first value, that is under way or goes next."""
        if self._door is _Door.SETTING:
            return self._initial
        return self._unsent[0] if self._door is _Door.OPEN and self._unsent else None

    @property
    def sends(self) -> LanePush | None:
        """That one, if its next segment is due."""
        current = self.current
        return current if current is not None and current.stage is PushStage.SENDS else None

    @property
    def next_clock(self) -> int:
        """Of the contribution that is queued next."""
        return self._clock

    def has_sent(self, clock: int) -> bool:
        """Whether all contributions before that one have been sent on this link."""
        return self._door is _Door.OPEN and (not self._unsent or self._unsent[0].clock >= clock)

    def has_credit(self, push: LanePush) -> bool:
        """Whether it may go whatever else is unanswered: it has begun, or nothing else of the key has."""
        return push.begun or self._begun == 0

    def has_question(self) -> bool:
        """Whether `question` has one."""
        while self._repeats and self._repeats[0].stage is not PushStage.REPEATS:
            self._repeats.popleft()
        if self._door is _Door.SHUT or (self.current is not None and self.current.stage is PushStage.ASKS):
            return True
        return self._door is _Door.OPEN and (bool(self._repeats) or self._has_read() or self._change_is_due())

    def question(self) -> Frame:
        """The next frame without any bytes of a value; it counts as sent. Call `has_question` before."""
        if self._door is _Door.SHUT:
            self._door = _Door.ASKED
            return self._spec(self.spec.text, 0)
        if self._repeats:
            return self._repeat(self._repeats.popleft())
        current = self.current
        if current is not None and current.stage is PushStage.ASKS:
            current.stage = PushStage.ASKED
            header = self._header(FrameType.RESUME, current.clock)
            return replace(header, total=len(current.data)), b""
        if self._has_read():
            return self._ask()
        assert self._change is not None
        self._change.asked = True
        return self._spec(self._change.text, CHANGES)

    def segment(self, most: int) -> Frame:
        """The next one, at most `most` bytes, of what `sends`; it counts as sent."""
        push = self.sends
        assert push is not None
        header, begin = self._push_header(push), push.sent
        end = min(len(push.data), begin + max(0, most if push.noted else most - NOTE_BYTES))
        payload: Buffer = push.data[begin:end]
        if not push.noted:
            header, payload = self._noted(header), encode_note(push.note) + bytes(payload)
        self._sent(push, end)
        return replace(header, offset=begin), payload

    def _change_is_due(self) -> bool:
        return self._change is not None and not self._change.asked and not self._unsent

    def _spec(self, text: str, number: int) -> Frame:
        header = replace(self._header(FrameType.SPEC, number), offset=self.spec.width, root=self.spec.root)
        return header, text.encode()

    def _header(self, kind: FrameType, clock: int = 0) -> Header:
        return Header(kind, self.spec.dtype, key=self.spec.key, round=clock % CLOCKS, total=self.spec.nbytes)

    def _push_header(self, push: LanePush) -> Header:
        header = self._header(FrameType.CLOCK if isinstance(push, LaneTick) else FrameType.PUSH, push.clock)
        return replace(header, total=len(push.data), flags=int(FrameFlag.SILENT), priority=push.priority)

    def _noted(self, header: Header) -> Header:
        """Says too which is the first contribution whose answer hasn't come."""
        heard = next(iter(self._pushes), 0)
        return replace(header, flags=header.flags | FrameFlag.NOTED, aux=heard)

    def _repeat(self, push: LanePush) -> Frame:
        push.stage = PushStage.SENT
        return self._noted(self._push_header(push)), encode_note(push.note)

    def _has_read(self) -> bool:
        """Whether `_ask` has a frame, about what is read."""
        return self._next_pull() is not None

    def _next_pull(self) -> LanePull | None:
        return next((pull for pull in self._pulls if pull.clock % CLOCKS not in self._reading), None)

    def _ask(self) -> Frame:
        pull = self._next_pull()
        assert pull is not None
        self._pulls.remove(pull)
        self._reading[pull.clock % CLOCKS] = pull
        header = self._header(FrameType.PULL, pull.clock)
        return replace(header, aux=pull.least, root=NOBODY, priority=pull.priority), b""

    def _sent(self, push: LanePush, end: int) -> None:
        is_value = push is not self._initial
        self._begun += is_value and not push.begun
        push.begun = push.noted = True
        push.sent = end
        if end < len(push.data):
            return
        push.stage = PushStage.SENT
        if is_value:
            self._unsent.popleft()
        else:
            self._door = _Door.SHUT  # to hear that it has arrived

    # What it is told

    def take(self, header: Header, payload: Buffer) -> None:
        """A frame about the key. Raises CorruptError for one that makes no sense."""
        if header.type is FrameType.OPENED:
            self._take_opened(header)
        elif header.type is FrameType.RESUMED:
            self._take_resumed(header)
        elif header.type is FrameType.APPLIED:
            self._take_applied(header, payload)
        elif header.type is FrameType.VALUE:
            self._take_value(header, payload)
        elif header.type is FrameType.CUTOFF:
            self.cut_off = header.round == self._clock % CLOCKS  # else that contribution is on its way
        else:
            raise self._corrupt(f"a {header.type.name} frame")

    def _take_opened(self, header: Header) -> None:
        if header.aux == CHANGED:
            self._take_changed()
            return
        if self._door is not _Door.ASKED:
            raise self._corrupt("an OPENED that answers nothing")
        if header.aux:
            self._begin_setting()
            return
        self._door = _Door.OPEN
        if self._has_value:
            self._compare(header.round)
            return
        self._has_value, self._initial, self._clock = True, None, header.round
        self._tell_openers(None)

    def _take_changed(self) -> None:
        change = self._change
        if change is None or not change.asked:
            raise self._corrupt("a change that was not asked for")
        self.spec, self._change = replace(self.spec, text=change.text), None
        for changed in change.changed:
            changed(None)

    def _begin_setting(self) -> None:
        initial = self._initial
        if self._has_value or (initial is not None and initial.stage is PushStage.SENT):
            raise self._corrupt("its value has been lost")
        if initial is None:
            self._door = _Door.LACKING
            why = f"store key {self.spec.key} has no value yet: this rank is to set it, but gives none"
            self._tell_openers(InvalidArgumentError(why))
            return
        self._door = _Door.SETTING

    def _tell_openers(self, error: BytePSLikeError | None) -> None:
        openers, self._openers = self._openers, []
        for opened in openers:
            opened(error)

    def _compare(self, clock: int) -> None:
        """On a new link: the server has all contributions before that one."""
        pushes = list(self._pushes.values())
        missing = (self._clock - clock) % CLOCKS
        here, missed = pushes[: len(pushes) - missing], pushes[max(0, len(pushes) - missing) :]
        if len(missed) != missing or (missed and missed[0].clock % CLOCKS != clock):
            raise self._corrupt(f"the server is at contribution {clock}, this rank at {self._clock % CLOCKS}")
        for push in here:
            push.stage = PushStage.REPEATS
        for push in missed:
            push.go_on(0)
        if missed:
            missed[0].new_link()  # of the others nothing can have arrived
        self._repeats, self._unsent = deque(here), deque(missed)

    def _take_resumed(self, header: Header) -> None:
        current = self.current
        if current is None or current.stage is not PushStage.ASKED or header.round != current.clock % CLOCKS:
            raise self._corrupt("a RESUMED that answers nothing")
        if header.offset >= len(current.data):
            raise self._corrupt(f"a contribution of {len(current.data)} bytes goes on at byte {header.offset}")
        current.go_on(header.offset)

    def _take_applied(self, header: Header, payload: Buffer) -> None:
        try:
            applied = Applied(header.aux)
        except ValueError as unknown:
            raise self._corrupt(str(unknown)) from None
        push = self._pushes.get(header.round)
        if push is None or applied is Applied.HELD:
            return  # said again, or to be said again
        if push.stage not in (PushStage.SENT, PushStage.REPEATS):
            raise self._corrupt(f"contribution {header.round} was answered before it was sent")
        del self._pushes[header.round]
        push.stage = PushStage.ANSWERED
        self._begun -= 1
        push.settled(Outcome(applied, header.offset, decode_ranks(payload)))

    def _take_value(self, header: Header, payload: Buffer) -> None:
        pull = self._reading.get(header.round)
        if pull is not None and pull.filtered and not pull.got:
            pull.out = memoryview(bytearray(header.total))
        if pull is None or header.total != len(pull.out):
            raise self._corrupt(f"a value of {header.total} bytes for read {header.round}, which there is not")
        if header.offset != pull.got or not header.length or (pull.got and header.root != pull.version):
            raise self._corrupt(
                f"bytes {header.offset} to {header.offset + header.length} of version {header.root} have come after"
                f" {pull.got} bytes of version {pull.version}"
            )
        pull.out[pull.got : pull.got + header.length] = memoryview(payload).cast("B")
        pull.got += header.length
        pull.version = header.root
        if pull.got == len(pull.out):
            del self._reading[header.round]
            pull.settled(Outcome(Applied.COUNTED, header.root))

    def _corrupt(self, what: str) -> CorruptError:
        return CorruptError(f"store key {self.spec.key}: {what}")
