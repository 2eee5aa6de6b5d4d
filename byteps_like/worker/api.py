"""What a worker can do, whatever carries it: the seam between `byteps_like.torch` and the runtime.

Implemented by `worker.native.NativeWorker` (the C++ engine), `portable.PortableWorker` (pyzmq and NumPy) and
`worker.local.LocalWorker` (a world of one). All take plain addresses, sizes and dtype codes: no torch here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, Protocol, runtime_checkable

from byteps_like.collectives.api import DEFAULT, CallOptions, CollectiveOperation, Group
from byteps_like.dtypes import DType, Op
from byteps_like.errors import BytePSLikeError
from byteps_like.worker.standing import Standing

TWOWAY = "twoway "

ON_LOSS = ("raise", "finish")
"""What becomes of tensors that servers keep when a worker dies: every rank hears of it in an error, or the others
finish without it."""


@dataclass(frozen=True)
class TensorSpec:
    """What all ranks must agree on for one name. `shape` is for messages and mismatch checks only."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    priority: int = 0
    partition_bytes: int = 0
    """How large its partitions may be; 0: as large as the job's settings say. The first rank to declare decides."""
    codec: str = ""
    """How it is encoded on the way: the canonical text of a codec (`Codec.spec()`), "" for raw. With "twoway " before
    it, servers keep an error feedback of their own for results that they encode again. Float32 only; all ranks alike.
    """

    row_bytes: int = 0
    """No partition splits so many bytes, but for the tensor's end; 0: any element may begin one."""
    beside: str = ""
    """The name of a tensor of as many bytes, declared before: this one is cut where that is, and each partition is on
    the same shard; "": anywhere. The first rank to declare decides."""
    on_loss: str = ""
    """Of a tensor that servers keep, one of ON_LOSS. All ranks alike."""
    replicas: int = 1
    """Of such a tensor, how many servers are to have it. All ranks alike."""
    says_all: bool = False
    """The name says what is here: who uses it means the same, and nothing needs to be compared."""
    details: str = field(default="", compare=False, repr=False)
    """A line for each thing that the shape is a checksum of. Where shapes differ, the first that does is named."""

    @property
    def codec_spec(self) -> str:
        """The codec's own text."""
        return self.codec.removeprefix(TWOWAY)

    @property
    def numel(self) -> int:
        """Number of elements."""
        count = 1
        for extent in self.shape:
            count *= extent
        return count

    @property
    def nbytes(self) -> int:
        """Bytes of the whole tensor."""
        return self.numel * self.dtype.itemsize


def first_difference(details: Sequence[str]) -> list[str]:
    """Of each the first line in which not all are the same, "nothing more" where one has ended; none if all are."""
    lines = zip_longest(*(text.splitlines() for text in details), fillvalue="nothing more")
    return next((list(some) for some in lines if len(set(some)) > 1), [])


@dataclass(frozen=True)
class Partition:
    """A slice of a declared tensor: the unit that is scheduled; `key` is on shard `shard` of server `server`."""

    key: int
    offset: int
    nbytes: int
    server: int
    shard: int


@dataclass(frozen=True)
class Declared:
    """A tensor known to the whole world: its partitions are the same on every rank."""

    spec: TensorSpec
    tensor_id: int
    partitions: tuple[Partition, ...]


@dataclass(frozen=True)
class Feedback:
    """What of a coded tensor comes back into its next round: addresses of fp32 arrays as long as it is, 0 for none.

    The caller keeps them alive until `compensate(declared, None)` and the end of what is in flight, and leaves them
    alone while a round is. Per element, before encoding: m = mu * m + g; g = g + mu * m with `nesterov`, else m;
    g = g + e. After it: e = g - what was sent of it. Where that isn't finite, e = 0.
    """

    residual: int = 0
    """e: error feedback (Karimireddy et al. 2019, section 4)."""
    momentum: int = 0
    """m: momentum correction (Deep Gradient Compression, Lin et al. 2018, section 3.1), instead of the optimizer's."""
    mu: float = 0.9
    nesterov: bool = False
    masked: bool = False
    """Momentum ends where the element was sent (the same, section 3.2). Needs both arrays."""
    on_gpu: bool = False
    """Both are in device memory: for a tensor that the GPU encodes (UsesGpu.encodes_on_gpu)."""


@dataclass(frozen=True)
class Links:
    """How a worker uses its links; ranks may differ in sizes. 0 and "" leave a thing as it is without tuning."""

    credit_bytes: int = 0
    segment_bytes: int = 0
    algorithm: str = ""
    """Of all_reduce, where reductions go among the workers; the same on all ranks."""


@dataclass(frozen=True)
class Meeting:
    """An operation of a single tensor that a rank waits for, the `use`th at `point`. Ranks that mean the same by it
    have the same `data`, the name under which it travels. `what` and `says` are for people: the point, and the call."""

    point: str
    use: int
    what: str
    says: str
    data: str
    ranks: tuple[int, ...] = ()
    """That must come to it, ascending; none: all."""
    blocks: bool = False
    """Whether this rank makes no other call before it has come about, since all its threads wait."""

    @property
    def place(self) -> MeetingPlace:
        """Where ranks meet for it."""
        return self.point, self.use


MeetingPlace = tuple[str, int]
"""A Meeting's point and use."""


OUT_OF_STEP = "the ranks disagree on which call is next"
"""What is told of several places begins with it: who hears it first from another rank awaits the scheduler's word."""

LEFT = "was shut down"
"""What an operation says that has failed because one of its ranks has left in good order: perhaps it had heard sooner
that the ranks disagree."""


@dataclass(frozen=True)
class Question:
    """Which of these a rank has begun, so as to prove that ranks wait for each other. `number`: from 1."""

    number: int
    places: tuple[MeetingPlace, ...]


@dataclass(frozen=True)
class Answer:
    """To the question of that number: whether this rank has begun each, in their order."""

    number: int
    begun: tuple[bool, ...]


class Attends(Protocol):
    """Who hears what has become of what ranks wait for: on a thread that must not be blocked."""

    def disagreed(self, places: Sequence[MeetingPlace], text: str) -> None:
        """None of these can come about: the ranks mean different things, or made one in place of the other."""

    def asked(self, question: Question) -> None:
        """Another `Meets.meet` is wanted, with the answer."""


@runtime_checkable
class Meets(Protocol):
    """A worker by whom ranks find out that they mean different things by an operation."""

    def meet(self, waiting: Sequence[Meeting], answer: Answer | None = None) -> None:
        """All that this rank has waited for longer than a moment. Never blocks."""

    def attend(self, who: Attends) -> None:
        """From here on `who` hears of it, on all ranks."""


@dataclass(frozen=True)
class Dismissal:
    """A member was asked to leave its job in order."""

    why: str
    replace: bool = False
    """Whoever has started it may start another one in its place."""


@runtime_checkable
class HearsOfChanges(Protocol):
    """A worker of a job that others may join while it runs."""

    def changes(self) -> int:
        """How often this rank has heard, in this world, that others wait to join, or that some have died without whom
        it goes on. Others hear of it a little earlier or later."""

    def dismissal(self) -> Dismissal | None:
        """That this worker is to leave, if it was asked to; `changes` has counted it."""


@dataclass(frozen=True)
class Newcomer:
    """Somebody who would join an elastic job once it has what the workers have."""

    number: int
    """Ascending, in the order in which all workers hear of them."""
    address: str
    """How it is reached: what only workers read."""


@runtime_checkable
class MeetsNewcomers(Protocol):
    """A worker of a job whose newcomers may catch up before they join."""

    def newcomers(self) -> Sequence[Newcomer]:
        """All that this rank has heard of in this world. Others hear of them a little earlier or later."""

    def feed(self, number: int, feeders: str) -> None:
        """Tells newcomer `number`, for all ranks, who sends it their state; "": nobody does. Returns at once."""


class MissesRanks(Protocol):
    """Who wants to know which ranks have died. Neither call may block."""

    def hear(self, rank: int) -> None:
        """That one has died, in the same order on all that live."""

    def fail(self, error: BytePSLikeError) -> None:
        """The job has ended for all."""


@runtime_checkable
class TellsOfLosses(Protocol):
    """A worker of a job that goes on when others die."""

    def attend_losses(self, who: MissesRanks) -> None:
        """From here on it is told."""


@runtime_checkable
class Forgets(Protocol):
    """A worker that can let go of a name, and of all that it stood for."""

    def forget(self, declared: Declared) -> None:
        """No rank will use this name again, nor declare it; nothing of it is in flight here."""


@runtime_checkable
class Tunable(Protocol):
    """A worker whose use of its links can be changed while it runs."""

    def use(self, links: Links) -> None:
        """From the next push on; what is in flight goes on as it began."""

    def retire(self, declared: Declared) -> None:
        """No rank will use this name again, and nothing of it is in flight here: what is held for it may be freed."""


class Scatter(Protocol):
    """The encoded reduce-scatters of one group, one at a time. What is fed back is as long as all parts together."""

    def reduce_scatter(
        self, source: int, target: int, counts: Sequence[int], dtype: DType, op: Op, options: CallOptions = DEFAULT
    ) -> CollectiveOperation:  # fmt: skip
        """As Group.reduce_scatter, for sums and averages of fp32; `counts` are the same each time. Overwrites
        `source`."""

    def compensate(self, feedback: Feedback | None, numel: int) -> None:
        """From the next call on `numel` elements have this. See Worker.compensate."""

    def rescale(self, factor: float) -> None:
        """See Worker.rescale."""


@runtime_checkable
class Scatters(Protocol):
    """A worker that encodes what its groups reduce and scatter."""

    def coded_scatter(self, group: Group, codec: str, rounds: int = 0) -> Scatter:
        """Of `group`, in whose place it makes calls, as TensorSpec has `codec`. After `rounds` of others in that group,
        on all ranks alike: no random number is drawn twice. Raises InvalidArgumentError for a codec whose payloads
        can't be summed."""


@dataclass(frozen=True)
class Places:
    """Where those are that a reduction goes through: on how many `hosts`; `servers` 0 where it goes among workers.
    `encode`: whether all workers can, since none is a portable one."""

    hosts: int
    servers: int
    encode: bool = True
    copies: bool = False
    """Whether other servers go on with copies of what a server keeps, once that is gone."""
    finishes: bool = False
    """Whether servers finish what ranks do together without one that has died."""


@runtime_checkable
class Placed(Protocol):
    """A worker that knows."""

    def places(self) -> Places:
        """The same on all ranks."""


class SharedMemory(Protocol):
    """A zero-filled, page-aligned block that same-host servers read and write in place. Freed with its last owner."""

    @property
    def address(self) -> int:
        """Where it begins in this process."""

    @property
    def nbytes(self) -> int:
        """Its size."""


class Handle(Protocol):
    """One operation in flight. Keep the buffer alive and unchanged until `wait` returned or raised."""

    def done(self) -> bool:
        """True once the result has landed or the operation failed; never blocks."""

    def wait(self, timeout: float | None = None) -> None:
        """Blocks (without the GIL) until the result has landed; `None` means the job's own deadline.

        Raises the typed error of the operation: MismatchError, StalledError, PeerLostError, ...
        """

    def give_up(self, error: BytePSLikeError) -> None:
        """Other ranks won't complete it: it ends with `error` on this rank, soon, and its name must not be used any
        more. Nothing if it is done."""


@dataclass(frozen=True)
class OnGpu:
    """Where a tensor is on a GPU; its address in host memory is then that of its mirror."""

    address: int
    """In device memory, of the whole tensor."""
    stream: int
    """Handle of the stream (CUstream) whose work so far is waited for before the tensor is read."""


@dataclass(frozen=True)
class Share:
    """What a rank moves of each partition, once the ranks of its host have reduced it: the `place`th of `count` equal
    shares (worker.shares). On every host there are ranks of all places."""

    place: int
    count: int


@runtime_checkable
class MovesShares(Protocol):
    """A worker whose `push_pull` takes `share: Share`, of raw tensors in host memory, for Op.SUM and AVERAGE, which is
    over the hosts: of each partition only that share is read, and its result lands there."""

    def moves_shares(self) -> bool:
        """Whether all ranks can; the same on all."""


KernelsOf = Callable[[Sequence[str]], Mapping[str, int]]
"""Of some of csrc/cuda's sources the kernels: CUfunctions by name. None of a source that can't be had."""


@runtime_checkable
class UsesGpu(Protocol):
    """A worker that moves tensors between a GPU and their mirrors by itself: its `push_pull` takes `gpu: OnGpu`, the
    handles that it returns have `wait_on(stream)`."""

    def use_gpu(self, gpu: Any, kernels: KernelsOf) -> bool:
        """From now on tensors may be on `gpu` (the native core's Gpu); those with a codec that are declared later are
        encoded there, where `kernels` has the kernels. False: it can't, or has another one already."""

    def encodes_on_gpu(self, declared: Declared) -> bool:
        """Whether the GPU can encode it; it does where its feedback is `on_gpu`, or it has none."""


@runtime_checkable
class Worker(Protocol):
    """One member of the world. Thread-safe. Every method raises the job's error once the job has failed."""

    route: str
    """How push_pull goes: "server", "allreduce" (collectives among workers) or "none" (a world of one)."""
    seal_key: bytes
    """32 bytes that only ranks of this epoch know, to prove bytes with; empty in a world of one."""

    @property
    def standing(self) -> Standing:
        """Where it stands in the view in force; the same object until the next view. Ask in every round."""

    @property
    def rank(self) -> int:
        """Of `standing`, as the next three."""

    @property
    def size(self) -> int:
        """Number of workers."""

    @property
    def local_rank(self) -> int:
        """Rank among the workers of its host."""

    @property
    def local_size(self) -> int:
        """Number of workers of its host."""

    def declare(self, specs: Sequence[TensorSpec]) -> list[Declared]:
        """Agrees on names with all ranks and places their partitions; blocks for one round trip, then cached.

        A name that comes again with another dtype, shape or codec raises MismatchError; a codec that doesn't exist,
        can't be summed on this route, or isn't for this dtype InvalidArgumentError.
        """

    def allocate(self, nbytes: int) -> SharedMemory:
        """Memory for an arena."""

    def empty_shared(self, nbytes: int) -> SharedMemory:
        """Memory that collectives with ranks of this host read and write in place."""

    def push_pull(
        self,
        declared: Declared,
        address: int,
        op: Op,
        *,
        root: int = 0,
        parts: range | None = None,
        priority: int | None = None,
    ) -> Handle:
        """Starts the reduction of `declared` in place at `address`; with `parts`, only of those partitions.

        Never blocks. Rounds are counted per key: the n-th call on one rank meets the n-th on the others.
        For Op.BROADCAST the bytes of `root` land on every rank. A tensor with a codec is encoded (not in the calling
        thread), summed as its payloads are, and what comes back is decoded to `address`; Op.SUM and AVERAGE only, and
        BROADCAST, which goes raw. What is at `address` meanwhile is undefined.
        """

    def compensate(self, declared: Declared, feedback: Feedback | None) -> None:
        """Feedback for a tensor with a codec, from the next push_pull on; None ends it. Nothing of it is in flight."""

    def rescale(self, declared: Declared, factor: float) -> None:
        """The residual is multiplied by `factor` once, when its next round is encoded: lr before / lr now."""

    def placed(self, declared: Declared, follows: bool = True) -> Declared:
        """Where the next round of `declared` goes: its partitions may change while the job runs (another cut, others'
        servers), between two rounds, on all ranks alike.

        `push_pull` of the whole tensor looks by itself, and any Declared of the tensor will do. Who pushes `parts` asks
        before each round, when the one before has landed, and numbers parts by the answer; a tensor whose rounds
        weren't asked for does not move. With `follows` False it only looks, and promises nothing.
        """

    def group(self, name: str, ranks: Sequence[int] | None = None) -> Group:
        """Some ranks (default: all) for collectives among workers. Sends no message: the same name is the same group.

        Raises InvalidArgumentError for ranks that aren't of this world, or where this kind of worker has no groups.
        """

    def note_route(self, name: str) -> None:
        """Somebody's gradients go this way from now on: for `byteps-like status`."""

    def barrier(self, timeout: float | None = None) -> None:
        """Blocks until every rank has come to its barrier; DeadlineError names who has not."""

    def close(self) -> None:
        """Leaves the job in order. Idempotent; outstanding handles fail with ShutdownError."""

    def stats(self) -> dict[str, int]:
        """Counters: payload_sent, payload_received, bytes_sent, bytes_received, frames_sent, frames_received.

        NativeWorker: payload_placed, of payload_received, that servers wrote to where it is wanted (RDMA); bounced,
        bytes that were copied into memory shared with servers of this host, and back out of it. Of what its
        codec threads have encoded on its way to servers: encoded_in (bytes before) and encoded_out (after), of what a
        GPU has: gpu_encoded_in, gpu_encoded_out; of tensors on a GPU: staged_down and staged_up (bytes that it has
        copied).
        """
