"""A membership with a clock of its own and mailboxes, for tests without gRPC."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from byteps_like.control.calls.journal import Decisions, Journal
from byteps_like.control.members.forming import Terms
from byteps_like.control.members.membership import Membership, Patience
from byteps_like.control.members.past import JobState
from byteps_like.control.members.seats import JoinClaim, Notice
from byteps_like.control.types import EventKind, Member, MemberRole, View, WatchEvent
from byteps_like.errors import BytePSLikeError
from tests.fakes.control.records import RecordsInMemory

INCARNATION = bytes(range(16))
PATIENCE = Patience(grace=0.7, first_watch=5.0, after_end=1.0, after_failure=60.0, prepare=10.0, quiet=5.0)


def claim(role: MemberRole, rank: int, id: str, **changes: object) -> JoinClaim:
    """A claim of a world of three workers and two servers unless `changes` says otherwise."""
    worker = role is MemberRole.WORKER
    fields: dict[str, object] = {
        "world_size": 3 if worker else 0,
        "num_servers": 2 if worker else -1,
        "settings": {"partition_bytes": "4096"} if worker else {},
        "timeout": 60.0,
    }
    number = int("".join(filter(str.isdigit, id)) or 0)
    member = Member(role, rank, f"boot{number % 2}", f"host{number % 2}", 100 + number, shards=1)
    return JoinClaim(id=id, member=member, **(fields | changes))  # type: ignore[arg-type]


@dataclass
class Job:
    """Drives a Membership: time only passes in `wait`, and every member's messages are kept."""

    terms: Terms = field(default_factory=Terms)
    now: float = 100.0
    inbox: dict[str, list[View | WatchEvent]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.membership = Membership("job", INCARNATION, self.terms, PATIENCE)
        self.records = RecordsInMemory()
        self.journal = Journal(self.records)

    def restart(self, *, silence: float = 1.0) -> None:
        """The scheduler ends, and another one goes on a little later: nobody has a watch stream. An ended job is
        forgotten."""
        self.now += silence
        self.journal = Journal(self.records)
        past = self.journal.past()
        self.membership = Membership("job", INCARNATION if past is None else past[0], self.terms, PATIENCE)
        if past is not None:
            self.membership.resume(past[1], self.now)
            self.membership.outbox[:] = [self._news(notice) for notice in self.membership.outbox]
        self.deliver()

    def _news(self, notice: Notice) -> Notice:
        """For whom it is that: a member passes over a view or a failure that it knows."""

        def is_known(id: str) -> bool:
            if isinstance(notice.message, View):
                return notice.message.number in {view.number for view in self.worlds(id)}
            return notice.message.kind is EventKind.FAILED and bool(self.events(id, EventKind.FAILED))

        return replace(notice, to=tuple(id for id in notice.to if not is_known(id)))

    def come_back(self, *ids: str) -> None:
        """These members' watch streams are open again; all present, if none is named."""
        for id in ids or [seat.id for seat in self.membership.seats()]:
            self.membership.watching(id, self.now)
        self.deliver()

    def join(self, claim: JoinClaim, *, watch: bool = True) -> None:
        """Joins and opens the watch stream; RefusedError passes."""
        self.inbox.setdefault(claim.id, [])
        try:
            self.membership.join(claim, self.now)
            if watch:
                self.membership.watching(claim.id, self.now)
        finally:
            self.deliver()

    def worker(self, rank: int, id: str = "", **changes: object) -> str:
        """A worker joins; its id."""
        made = claim(MemberRole.WORKER, rank, id or f"w{rank}", **changes)
        self.join(made)
        return made.id

    def server(self, id: str, rank: int = -1, **changes: object) -> str:
        """A server joins; its id."""
        self.join(claim(MemberRole.SERVER, rank, id, **changes))
        return id

    def decline(self, rank: int, why: str, role: MemberRole = MemberRole.WORKER) -> None:
        """A worker or a server can't start."""
        self.membership.decline(claim(role, rank, f"{role.value[0]}{rank}").member, why)
        self.deliver()

    def form(self) -> None:
        """Three workers and two servers, running."""
        for rank in range(3):
            self.worker(rank)
        for id in ("s0", "s1"):
            self.server(id)
        self.get_ready("s0", "s1")

    def get_ready(self, *ids: str) -> None:
        """These servers take up the present epoch."""
        for id in ids:
            self.membership.ready(id, self.membership.number, self.now)
        self.deliver()

    def report(self, id: str, error: BytePSLikeError, *, fatal: bool = True) -> None:
        """A member says what it has met in the present epoch."""
        self.do("report" if fatal else "warn", id, self.membership.number, error)

    def do(self, action: str, id: str, *arguments: object) -> None:
        """One call of the membership on behalf of a member."""
        try:
            getattr(self.membership, action)(id, *arguments, self.now)
        finally:
            self.deliver()

    def wait(self, seconds: float) -> None:
        """Lets time pass, acting on every deadline on the way, as the scheduler's timer does."""
        end = self.now + seconds
        while True:
            due = self.membership.next_deadline()
            if due is None or due > end:
                break
            assert due >= self.now or self.now - due < 1e-6, "a deadline in the past would spin"
            self.now = max(due, self.now)
            self.membership.tick(self.now)
            self.deliver()
            again = self.membership.next_deadline()
            assert again is None or again > self.now, "tick left a deadline that has passed"
        self.now = end

    def deliver(self) -> None:
        """What was decided is stored, and messages reach the inboxes."""
        self.journal.write(self.membership, Decisions())
        for notice in self.membership.outbox:
            for id in notice.to:
                self.inbox[id].append(notice.message)
        self.membership.outbox.clear()
        self.membership.gone.clear()

    def worlds(self, id: str) -> list[View]:
        """Worlds this member was told of."""
        return [message for message in self.inbox[id] if isinstance(message, View)]

    def events(self, id: str, kind: EventKind) -> list[WatchEvent]:
        """Events of one kind this member was told of."""
        return [message for message in self.inbox[id] if isinstance(message, WatchEvent) and message.kind is kind]

    def failure(self, id: str) -> BytePSLikeError:
        """The error of this member's only FAILED event."""
        (event,) = self.events(id, EventKind.FAILED)
        assert event.error is not None
        return event.error

    @property
    def state(self) -> JobState:
        """Of the job."""
        return self.membership.state
