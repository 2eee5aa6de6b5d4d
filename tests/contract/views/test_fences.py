"""Who is fenced off from a running job: processes of an earlier start with the same name and secret, and who errs."""

import os
import threading
from collections.abc import Iterator

import numpy as np
import pytest

import byteps_like._core as core
from byteps_like.collectives.communicator import Communicator
from byteps_like.config import Config
from byteps_like.dtypes import DType, Op
from byteps_like.errors import BytePSLikeError, PeerLostError, RefusedError

SECRET = b"s" * 32
NOW, BEFORE = b"n" * 16, b"b" * 16
WORKERS, SERVER = [11, 12], 13
COUNT = 10_000


@pytest.fixture(params=["tcp", "shm", "inproc"])
def server(request: pytest.FixtureRequest) -> Iterator[core.Server]:
    """Server 0 of a world of two workers."""
    place = "127.0.0.1:0" if request.param == "tcp" else f"fences-{os.getpid()}-{os.urandom(4).hex()}"
    made = core.Server("job", SECRET, [f"{request.param}://{place}"])
    made.set_world(NOW, 1, WORKERS, SERVER, 5.0, 20.0, 0)
    yield made
    made.stop()


def engine(
    server: core.Server,
    rank: int,
    *,
    incarnation: bytes = NOW,
    number: int = 0,
    of: int = SERVER,
    secret: bytes = SECRET,
) -> core.Engine:
    """Rank `rank` with its only tensor."""
    shards = [(0, 0, list(server.urls), of)]
    number = number or WORKERS[rank]
    made = core.Engine("job", secret, incarnation, 1, rank, number, 2, shards, 1 << 17, 1 << 20, 1.0, 5.0, 20.0)
    made.declare(int(DType.FLOAT32), [(1, 0, 4 * COUNT, 0)])
    return made


def push_pull(made: core.Engine, value: float) -> np.ndarray:
    """What a round of `value` from this rank returns."""
    values = np.full(COUNT, value, np.float32)
    assert made.wait(made.submit(0, values.ctypes.data, 0, 1, int(Op.SUM), 0, 0), 20.0)
    return values


def test_a_straggler_of_an_earlier_start_is_refused_and_sums_stay_right(server: core.Server) -> None:
    engines = [engine(server, rank) for rank in range(2)]
    results: list[list[np.ndarray]] = [[], []]
    refused: list[BytePSLikeError] = []
    done = threading.Event()

    def train(rank: int) -> None:
        results[rank] += [push_pull(engines[rank], 10.0**rank) for _ in range(30)]

    def come_back() -> None:
        while not done.is_set():
            try:
                engine(server, 1, incarnation=BEFORE).close()
            except BytePSLikeError as error:
                refused.append(error)

    threads = [threading.Thread(target=train, args=(rank,)) for rank in range(2)]
    straggler = threading.Thread(target=come_back)
    for thread in (straggler, *threads):
        thread.start()
    for thread in threads:
        thread.join(40)
    done.set()
    straggler.join(20)
    assert all(len(result) == 30 and all((one == 11.0).all() for one in result) for result in results)
    assert refused
    assert all(isinstance(error, RefusedError) and "another start of the same job" in str(error) for error in refused)
    for made in engines:
        made.close()


@pytest.mark.parametrize(
    ("claim", "says"),
    [
        ({"of": 77}, "you have reached server 0, which is not the member you dialled"),
        ({"number": 14}, "no member 14"),
        ({"secret": b"t" * 32}, "another secret"),
    ],
)
def test_who_errs_is_told_in_time(server: core.Server, claim: dict, says: str) -> None:
    with pytest.raises(RefusedError, match=says):
        engine(server, 0, **claim)


def test_workers_of_two_starts_do_not_talk() -> None:
    config = Config(transport="tcp", host="127.0.0.1")
    made = [Communicator(config, "job", SECRET) for _ in range(2)]
    peers = [one.own for one in made]
    try:
        for rank, (one, incarnation) in enumerate(zip(made, (NOW, BEFORE), strict=True)):
            one.join(1, rank, peers, incarnation)
        with pytest.raises(PeerLostError, match="another start of the same job"):
            made[0].group("all").barrier().wait(20.0)
    finally:
        for one in made:
            one.close()
