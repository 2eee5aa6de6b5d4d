"""What a portable worker says about store keys, without any network: one key's story, credit, and links that break
anywhere."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random

import numpy as np
import pytest
from fake_keeper import FakeKeeper

from byteps_like.dtypes import DType
from byteps_like.errors import BytePSLikeError, CorruptError, InvalidArgumentError
from byteps_like.portable.flow import URGENT
from byteps_like.portable.store_flow import StoreFlow
from byteps_like.portable.store_lane import CHANGED, CHANGES, CLOCKS, NOBODY, LanePull, LanePush, LaneSpec
from byteps_like.wire.frame import FrameFlag, FrameType, Header
from byteps_like.wire.note import Applied, Note, NoteBit, decode_note
from byteps_like.worker.keeping import KeepSpec, Outcome

TEXT = KeepSpec("asp", "sum:age=none,damp=none", "add").text
SPEC, OPENED, PUSH, PULL, VALUE = (
    FrameType.SPEC, FrameType.OPENED, FrameType.PUSH, FrameType.PULL, FrameType.VALUE,
)  # fmt: skip
APPLIED, RESUME, RESUMED, CALL = FrameType.APPLIED, FrameType.RESUME, FrameType.RESUMED, FrameType.CALL
SILENT, NOTED = int(FrameFlag.SILENT), int(FrameFlag.SILENT | FrameFlag.NOTED)


def lane_spec(key: int = 1, nbytes: int = 48, root: int = NOBODY, text: str = TEXT) -> LaneSpec:
    return LaneSpec(key, 0, DType.INT64, nbytes, 1, root, text)


def sent(flow: StoreFlow) -> list[tuple[Header, bytes]]:
    """All that can go now."""
    frames = []
    while flow.urgency() is not None:
        _, header, payload = flow.next_frame()
        frames.append((header, bytes(payload)))
    return frames


def told(flow: StoreFlow) -> list[tuple[FrameType, int, int, int]]:
    """(type, key, round, offset) of all that can go now."""
    return [(header.type, header.key, header.round, header.offset) for header, _ in sent(flow)]


def opened(flow: StoreFlow, spec: LaneSpec, clock: int = 0, version: int = 0) -> None:
    """That key is open."""
    flow.open(spec, None, lambda _: None)
    sent(flow)
    flow.take(Header(OPENED, key=spec.key, round=clock, offset=version), b"")


def push_of(
    nbytes: int, outcomes: list[Outcome] | None = None, note: Note | None = None, priority: int = 0
) -> LanePush:
    data = memoryview(bytes(range(nbytes)))
    return LanePush(data, note or Note(), (outcomes if outcomes is not None else []).append, priority)


def applied(clock: int, how: Applied = Applied.COUNTED, key: int = 1, version: int = 1) -> Header:
    return Header(APPLIED, key=key, round=clock, aux=how, offset=version, total=48)


def test_a_contribution_goes_in_segments_behind_its_note():
    flow, outcomes = StoreFlow(40, 1000), list[Outcome]()
    opened(flow, lane_spec(), clock=5, version=9)
    note = Note(base=9, weight=2.0, lr=0.5, loss=1.0)
    flow.push(1, push_of(48, outcomes, note, priority=3))
    (first, payload), (second, rest) = sent(flow)
    assert (first.flags, first.round, first.offset, first.total, first.aux, first.priority) == (NOTED, 5, 0, 48, 5, 3)
    assert decode_note(payload) == note
    assert (second.flags, second.round, second.offset) == (SILENT, 5, 8)
    assert payload[32:] + rest == bytes(range(48))
    flow.take(applied(5, Applied.HELD), b"")
    assert not outcomes
    flow.take(applied(5, Applied.LATE, version=11), b"")
    flow.take(applied(5, Applied.LATE, version=11), b"")
    assert outcomes == [Outcome(Applied.LATE, 11)]


@pytest.mark.parametrize("segment", [1, 8, 32])
def test_segments_may_be_shorter_than_a_note(segment):
    flow = StoreFlow(segment, 1000)
    opened(flow, lane_spec())
    flow.push(1, push_of(48))
    frames = sent(flow)
    assert b"".join([frames[0][1][32:], *(payload for _, payload in frames[1:])]) == bytes(range(48))
    assert max(len(payload) for _, payload in frames[1:]) == max(8, segment)


def test_who_sets_the_value_sends_it_and_asks_again():
    flow, results = StoreFlow(40, 1000), list[BytePSLikeError | None]()
    value = memoryview(bytes(48))
    flow.open(lane_spec(root=0), value, results.append)
    ((spec, text),) = sent(flow)
    assert (spec.type, spec.offset, spec.root, spec.total, text.decode()) == (SPEC, 1, 0, 48, TEXT)
    flow.take(Header(OPENED, key=1, aux=1), b"")
    (first, payload), second, again = sent(flow)
    assert decode_note(payload).bits & NoteBit.INITIAL
    assert (first.flags, second[0].offset, again[0].type, again[1]) == (NOTED, 8, SPEC, b"")
    assert not results
    flow.take(Header(OPENED, key=1), b"")
    assert results == [None]
    flow.open(lane_spec(root=0), None, results.append)
    assert results == [None, None] and not sent(flow)


def test_who_has_no_value_to_set_is_told_and_may_bring_one_later():
    flow, results = StoreFlow(1000, 1000), list[BytePSLikeError | None]()
    flow.open(lane_spec(root=0), None, results.append)
    sent(flow)
    flow.take(Header(OPENED, key=1, aux=1), b"")
    assert isinstance(results.pop(), InvalidArgumentError) and not results and not sent(flow)
    flow.open(lane_spec(root=0), memoryview(bytes(48)), results.append)
    assert told(flow) == [(SPEC, 1, 0, 1)]
    flow.take(Header(OPENED, key=1, aux=1), b"")
    assert told(flow) == [(PUSH, 1, 0, 0), (SPEC, 1, 0, 1)]


def test_the_text_of_a_spec_goes_once_on_a_link():
    flow = StoreFlow(1000, 1000)
    other = TEXT.replace("asp", "bsp")
    for key, text in enumerate((TEXT, other, TEXT, other)):
        flow.open(lane_spec(key, text=text), None, lambda _: None)
    flow.open(replace(lane_spec(9, text=other), shard=1), None, lambda _: None)
    once = [(0, TEXT), (1, other), (0, ""), (1, ""), (0, other)]
    assert [(header.aux, text.decode()) for header, text in sent(flow)] == once
    flow.new_link()
    assert [(header.aux, text.decode()) for header, text in sent(flow)] == once


def test_a_change_goes_after_what_was_asked_before_and_holds_on_new_links():
    flow, changed, other = StoreFlow(1000, 1000), list[object](), list[object]()
    spec = replace(lane_spec(), text=TEXT.replace("asp", "bsp"))
    opened(flow, lane_spec())
    flow.push(1, push_of(48))
    flow.open(spec, None, changed.append)
    frames = sent(flow)
    assert [(header.type, header.round, header.aux) for header, _ in frames] == [(PUSH, 0, 0), (SPEC, CHANGES, 1)]
    assert frames[1][1].decode() == spec.text
    flow.new_link()
    assert told(flow) == [(SPEC, 1, 0, spec.width)]
    flow.take(Header(OPENED, key=1, round=1), b"")
    assert [(kind, number) for kind, _, number, _ in told(flow)] == [(PUSH, 0), (SPEC, CHANGES)]
    flow.open(replace(spec, text=TEXT.replace("asp", "ssp:s=1")), None, other.append)
    assert isinstance(other[0], InvalidArgumentError) and not changed
    flow.take(Header(OPENED, key=1, round=1, aux=CHANGED), b"")
    assert changed == [None]
    flow.open(spec, None, changed.append)
    assert changed == [None, None] and not told(flow)
    with pytest.raises(CorruptError, match="not asked for"):
        flow.take(Header(OPENED, key=1, round=1, aux=CHANGED), b"")


def test_a_read_says_what_it_waits_for_and_lands_in_pieces():
    flow, outcomes, out = StoreFlow(1000, 1000), list[Outcome](), bytearray(48)
    opened(flow, lane_spec(), clock=2)
    flow.push(1, push_of(48))
    for least in (7, 0):
        flow.pull(1, LanePull(memoryview(out), outcomes.append, least, priority=4))
    (pull, _), (push, _) = sent(flow)
    assert (pull.type, pull.round, pull.aux, pull.root, pull.offset, pull.total, pull.priority) == (
        PULL, 3, 7, NOBODY, 0, 48, 4
    )  # fmt: skip
    assert push.type is PUSH
    for offset in (0, 40):
        value = Header(VALUE, key=1, round=3, offset=offset, length=min(40, 48 - offset), total=48, root=8)
        assert not outcomes
        flow.take(value, bytes([offset]) * value.length)
    assert (outcomes, bytes(out)) == ([Outcome(Applied.COUNTED, 8)], bytes(40) + b"\x28" * 8)
    assert told(flow) == [(PULL, 1, 3, 0)], "one after the other"


def test_a_read_of_a_version_to_come_keeps_none_back_but_those_with_as_many_contributions_before_them():
    """Those may be what it waits for."""
    flow, landed = StoreFlow(1000, 1000), list[str]()
    opened(flow, lane_spec())
    outs = {name: bytearray(48) for name in "abc"}
    pulls = {name: LanePull(memoryview(out), lambda _, name=name: landed.append(name)) for name, out in outs.items()}
    flow.pull(1, replace(pulls["a"], least=5))
    flow.pull(1, pulls["b"])
    flow.push(1, push_of(48))
    flow.pull(1, pulls["c"])
    assert told(flow) == [(PULL, 1, 0, 0), (PULL, 1, 1, 0), (PUSH, 1, 0, 0)]
    half = Header(VALUE, key=1, length=24, total=48)
    for clock, offset, version in ((1, 0, 1), (0, 0, 5), (1, 24, 1), (0, 24, 5)):
        flow.take(replace(half, round=clock, offset=offset, root=version), bytes([version]) * 24)
    assert landed == ["c", "a"] and outs["c"] == b"\x01" * 48 and outs["a"] == b"\x05" * 48
    assert told(flow) == [(PULL, 1, 0, 0)]
    flow.new_link()
    sent(flow)
    flow.take(Header(OPENED, key=1, round=1), b"")
    assert told(flow)[-1] == (PULL, 1, 0, 0)


def test_a_higher_priority_goes_between_segments():
    flow = StoreFlow(40, 1000)
    for key in (1, 2):
        opened(flow, lane_spec(key))
    flow.push(1, push_of(48))
    assert flow.urgency() == 0
    flow.next_frame()
    flow.push(2, push_of(48, priority=1))
    assert flow.urgency() == 1
    flow.pull(1, LanePull(memoryview(bytearray(48)), lambda _: None))
    assert flow.urgency() == URGENT
    assert told(flow) == [(PULL, 1, 1, 0), (PUSH, 2, 0, 0), (PUSH, 2, 0, 8), (PUSH, 1, 0, 8)]


def test_one_contribution_of_each_key_needs_no_credit_and_more_do():
    flow = StoreFlow(1000, 100)
    for key in range(5):
        opened(flow, lane_spec(key))
    for key in (*range(5), *range(5), *range(5)):
        flow.push(key, push_of(48))
    first = sorted((key, number) for _, key, number, _ in told(flow))
    assert first == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (3, 0), (4, 0)], "and 96 bytes more"
    flow.take(applied(0, key=4), b"")
    assert told(flow) == [(PUSH, 4, 1, 0)]
    flow.take(applied(0, key=0), b"")
    assert told(flow) == [(PUSH, 2, 1, 0)], "which has waited longest"


def test_on_a_new_link_the_server_says_what_it_has():
    flow = StoreFlow(40, 1000)
    opened(flow, lane_spec(), clock=5)
    outcomes = list[Outcome]()
    for _ in range(4):
        flow.push(1, push_of(48, outcomes))
    assert [(number, offset) for _, _, number, offset in told(flow)] == [(n, o) for n in range(5, 9) for o in (0, 8)]
    flow.take(applied(5), b"")
    flow.new_link()
    assert told(flow) == [(SPEC, 1, 0, 1)]
    flow.take(Header(OPENED, key=1, round=7, offset=1), b"")
    (repeat, note), (resume, _) = sent(flow)
    assert (repeat.type, repeat.flags, repeat.round, repeat.aux, len(note)) == (PUSH, NOTED, 6, 6, 32)
    assert (resume.type, resume.round, resume.offset, resume.total) == (RESUME, 7, 0, 48)
    flow.take(Header(RESUMED, key=1, round=7, offset=8, total=48), b"")
    assert told(flow) == [(PUSH, 1, 7, 8), (PUSH, 1, 8, 0), (PUSH, 1, 8, 8)]
    for clock in (6, 7, 8):
        flow.take(applied(clock, version=clock), b"")
    assert outcomes == [Outcome(Applied.COUNTED, version) for version in (1, 6, 7, 8)]


def test_what_was_answered_in_the_meantime_is_not_repeated():
    """It may have said so with a later contribution already, and would be refused."""
    flow = StoreFlow(1000, 1000)
    opened(flow, lane_spec())
    for _ in range(2):
        flow.push(1, push_of(48))
    sent(flow)
    flow.new_link()
    sent(flow)
    flow.take(Header(OPENED, key=1, round=2), b"")
    flow.take(applied(0), b"")
    assert told(flow) == [(PUSH, 1, 1, 0)]


def test_a_key_is_cut_off_until_the_contribution_that_the_server_lacks_is_queued():
    flow = StoreFlow(1000, 1000)
    assert not flow.is_cut_off(1)
    opened(flow, lane_spec(), clock=CLOCKS - 1)
    flow.push(1, push_of(48))
    flow.take(Header(FrameType.CUTOFF, key=1, round=CLOCKS - 1, offset=9), b"")  # which has crossed that one
    assert not flow.is_cut_off(1)
    flow.take(Header(FrameType.CUTOFF, key=1, round=0, offset=9), b"")
    assert flow.is_cut_off(1)
    flow.push(1, push_of(48))
    assert not flow.is_cut_off(1)


def test_clocks_wrap():
    flow, outcomes = StoreFlow(1000, 1000), list[Outcome]()
    opened(flow, lane_spec(), clock=0xFFFFFFFF)
    for _ in range(2):
        flow.push(1, push_of(48, outcomes))
    assert told(flow) == [(PUSH, 1, 0xFFFFFFFF, 0), (PUSH, 1, 0, 0)]
    flow.new_link()
    sent(flow)
    flow.take(Header(OPENED, key=1, round=0), b"")
    assert told(flow) == [(PUSH, 1, 0xFFFFFFFF, 0), (RESUME, 1, 0, 0)]
    flow.take(applied(0xFFFFFFFF), b"")
    assert len(outcomes) == 1


RESULTS = Header(VALUE, key=1, round=1, length=8, total=48, root=3)


@pytest.mark.parametrize(
    "frames",
    [
        [Header(OPENED, key=1)],
        [replace(RESULTS, round=2)],
        [replace(RESULTS, total=56)],
        [replace(RESULTS, offset=8)],
        [RESULTS, replace(RESULTS, offset=8, root=4)],
        [Header(RESUMED, key=1, round=0, total=48)],
        [replace(applied(0), aux=9)],
        [applied(1)],
        [Header(FrameType.RESULT, key=1)],
    ],
)
def test_what_can_not_be_is_refused(frames):
    flow = StoreFlow(1000, 10)
    opened(flow, lane_spec())
    for _ in range(2):
        flow.push(1, push_of(48))
    flow.pull(1, LanePull(memoryview(bytearray(48)), lambda _: None))
    flow._lanes[1]._pulls[0].clock = 1
    sent(flow)
    assert not flow.take(Header(OPENED, key=2), b"")
    *before, last = frames
    for header in before:
        flow.take(header, bytes(header.length))
    with pytest.raises(CorruptError, match="store key 1"):
        flow.take(last, bytes(last.length))


@pytest.mark.parametrize("clock", [0, 4])
def test_a_server_that_has_forgotten_is_refused(clock):
    flow = StoreFlow(1000, 1000)
    opened(flow, lane_spec(), clock=1)
    for _ in range(2):
        flow.push(1, push_of(48))
    sent(flow)
    flow.new_link()
    sent(flow)
    with pytest.raises(CorruptError, match=f"the server is at contribution {clock}, this rank at 3"):
        flow.take(Header(OPENED, key=1, round=clock), b"")


RANKS, ROOT = 3, 1
SIZES = {1: 48, 2: 8}
"""Bytes by key."""
SEGMENT = 40
POLICIES = ["bsp", "asp", "ssp:s=1", "k_of_n:k=2,late=next", "backup:b=1"]
SCHEDULES, STEPS = 150, 400
FIRST = {key: np.arange(nbytes // 8) for key, nbytes in SIZES.items()}


@dataclass
class Read:
    """A value, once it has an outcome, after so many contributions of its rank to the key."""

    key: int
    before: int
    out: np.ndarray
    outcomes: list[Outcome] = field(default_factory=list)


class Asked:
    """What one rank has asked for."""

    def __init__(self) -> None:
        self.opened: set[int] = set()
        self.pushed: dict[int, list[np.ndarray]] = {key: [] for key in SIZES}
        self.outcomes: dict[int, dict[int, Outcome]] = {key: {} for key in SIZES}
        """By key, of each contribution."""
        self.reads: list[Read] = []

    def newest(self, key: int) -> int:
        """The version that it has read last."""
        return max((read.outcomes[0].version for read in self.reads if read.key == key and read.outcomes), default=0)


class Links:
    """Three ranks at one shard, frame by frame, over links that break; by `seed`."""

    def __init__(self, policy: str, seed: int) -> None:
        self._random = Random(seed)
        self.keeper = FakeKeeper(RANKS)
        self._flows = [StoreFlow(SEGMENT, self._random.choice([0, 100, 1000])) for _ in range(RANKS)]
        self.asked = [Asked() for _ in range(RANKS)]
        self._up: list[deque[tuple[Header, bytes]]] = [deque() for _ in range(RANKS)]
        self._breaks = self._random.choice([0, 1, 5])
        text = KeepSpec(policy, "sum:age=none,damp=none", "add").text
        for rank, flow in enumerate(self._flows):
            for key, nbytes in SIZES.items():
                value = memoryview(FIRST[key].tobytes()) if rank == ROOT else None
                flow.open(lane_spec(key, nbytes, ROOT, text), value, partial(self._opened, rank, key))

    def play(self) -> None:
        """Some steps, then whatever is missing until nothing can move."""
        for _ in range(STEPS):
            steps = [self._push, self._pull, self._says, self._arrives, self._hears, self._cut]
            (step,) = self._random.choices(steps, [8, 6, 40, 40, 40, self._breaks])
            step(self._random.randrange(RANKS))
        self._settle()
        for key in SIZES:
            most = max(len(asked.pushed[key]) for asked in self.asked)
            for rank, asked in enumerate(self.asked):
                while len(asked.pushed[key]) < most:
                    self._push_to(rank, key)
        self._settle()

    def _opened(self, rank: int, key: int, error: BytePSLikeError | None) -> None:
        assert error is None and key not in self.asked[rank].opened
        self.asked[rank].opened.add(key)

    def _push(self, rank: int) -> None:
        if opened := sorted(self.asked[rank].opened):
            self._push_to(rank, self._random.choice(opened))

    def _push_to(self, rank: int, key: int) -> None:
        asked = self.asked[rank]
        assert key in asked.opened
        gradient = np.arange(SIZES[key] // 8) * 1000 + self._random.randrange(100)
        settled = partial(self._settled, asked, key, len(asked.pushed[key]))
        asked.pushed[key].append(gradient)
        push = LanePush(
            memoryview(gradient).cast("B"), Note(base=asked.newest(key)), settled, self._random.randrange(3)
        )
        self._flows[rank].push(key, push)

    def _settled(self, asked: Asked, key: int, clock: int, outcome: Outcome) -> None:
        assert clock not in asked.outcomes[key], "once"
        asked.outcomes[key][clock] = outcome

    def _pull(self, rank: int) -> None:
        asked = self.asked[rank]
        if asked.opened:
            key = self._random.choice(sorted(asked.opened))
            read = Read(key, len(asked.pushed[key]), np.full(SIZES[key] // 8, -1))
            asked.reads.append(read)
            least = asked.newest(key) + self._random.choice([0, 0, 0, 1, 2])
            pull = LanePull(memoryview(read.out).cast("B"), read.outcomes.append, least, self._random.randrange(3))
            self._flows[rank].pull(key, pull)

    def _says(self, rank: int) -> None:
        if self._flows[rank].urgency() is not None:
            _, header, payload = self._flows[rank].next_frame()
            self._up[rank].append((header, bytes(payload)))

    def _arrives(self, rank: int) -> None:
        if self._up[rank]:
            self.keeper.take(rank, *self._up[rank].popleft())

    def _hears(self, rank: int) -> None:
        if self.keeper.out[rank]:
            assert self._flows[rank].take(*self.keeper.out[rank].pop(0))

    def _cut(self, rank: int) -> None:
        self._up[rank].clear()
        self.keeper.cut(rank)
        self._flows[rank].new_link()

    def _settle(self) -> None:
        while any(self.keeper.out.values()) or any(self._up) or any(flow.urgency() is not None for flow in self._flows):
            for rank in range(RANKS):
                for move in (self._says, self._arrives, self._hears):
                    move(rank)


@pytest.mark.parametrize("policy", POLICIES)
def test_each_contribution_counts_once_and_reads_are_of_one_version_wherever_links_break(policy):
    told, repeated = Counter[Applied](), 0
    for seed in range(SCHEDULES):
        links = Links(policy, seed)
        try:
            links.play()
            for key in SIZES:
                check_once(links, key)
                check_reads(links, key, sees_own=policy.startswith(("bsp", "asp", "ssp")))
        except (AssertionError, BytePSLikeError) as error:
            raise AssertionError(f"{policy}, seed {seed}: {error}") from error
        told.update(one.applied for asked in links.asked for key in SIZES for one in asked.outcomes[key].values())
        repeated += links.keeper.seen[RESUME]
    assert told[Applied.COUNTED] > 500 and repeated > 100
    assert policy != "backup:b=1" or told[Applied.LATE] > 100


def check_once(links: Links, key: int) -> None:
    """Who has no answer waits for others; the value is what was said to count."""
    keep = links.keeper.entries[key].key
    assert keep is not None
    total, unanswered = FIRST[key].copy(), 0
    for rank, asked in enumerate(links.asked):
        here, answered = keep.ledger.clock(rank), len(asked.outcomes[key])
        assert here == len(asked.pushed[key]) or here > answered, "others wait for the answer to one that is here"
        unanswered += here - answered
        for clock, outcome in asked.outcomes[key].items():
            total += asked.pushed[key][clock] * (outcome.applied is Applied.COUNTED)
    assert unanswered == len(keep._staged)
    assert (keep.value.ravel() == total).all()


def check_reads(links: Links, key: int, *, sees_own: bool) -> None:
    """What has landed is one version, whole. Most policies let a rank read only what its own contributions are in."""
    entry = links.keeper.entries[key]
    for asked in links.asked:
        for read in asked.reads:
            if read.key != key or not read.outcomes:
                assert read.key != key or entry.readers, "it, or one before it, waits there"
                continue
            version = read.outcomes[0].version
            assert read.out.tobytes() == entry.history[version]
            if sees_own:
                assert all(asked.outcomes[key][clock].version <= version for clock in range(read.before))


def call_on(flow: StoreFlow, keys: list[int], told: list[object], text: bytes = b"text") -> None:
    flow.call(keys, 2, 5, text, lambda error, answer: told.append(error or answer))


def test_a_call_goes_behind_what_was_contributed_before_and_one_goes_after_the_other():
    flow, told_of = StoreFlow(40, 1000), list[object]()
    for key in (1, 2):
        opened(flow, lane_spec(key))
    flow.push(2, push_of(48))
    call_on(flow, [1, 2], told_of)
    flow.push(2, push_of(48))
    call_on(flow, [1], told_of)
    assert [kind for kind, *_ in told(flow)] == [PUSH, PUSH, CALL, PUSH, PUSH]
    header = Header(CALL, key=1)
    flow.take(header, b"one")
    ((second, text),) = sent(flow)[:1]
    assert (second.type, second.key, second.round, second.aux, second.total, text) == (CALL, 1, 1, 2, 5, b"text")
    flow.take(header, b"again")  # over an older link
    flow.take(replace(header, round=1, aux=1), b"it went wrong")
    assert told_of[0] == b"one" and isinstance(told_of[1], InvalidArgumentError)
    with pytest.raises(CorruptError, match="call 2 was answered, which was not made"):
        flow.take(replace(header, round=2), b"")


def test_a_call_goes_again_on_a_new_link_behind_what_goes_again():
    flow, told_of = StoreFlow(1000, 1000), list[object]()
    opened(flow, lane_spec())
    flow.push(1, push_of(48))
    call_on(flow, [1], told_of)
    assert [kind for kind, *_ in told(flow)] == [PUSH, CALL]
    flow.new_link()
    assert [kind for kind, *_ in told(flow)] == [SPEC]
    flow.take(Header(OPENED, key=1), b"")  # which has not had the contribution
    assert [kind for kind, *_ in told(flow)] == [RESUME]
    flow.take(Header(RESUMED, key=1), b"")
    assert [kind for kind, *_ in told(flow)] == [PUSH, CALL]
    flow.take(Header(CALL, key=1), b"at last")
    assert told_of == [b"at last"]
