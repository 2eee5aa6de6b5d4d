"""Under torchrun the workers need no further process: ranks meet in torchrun's store, rank 0 embeds the rest."""

import os
import subprocess
from dataclasses import replace
from threading import Thread

import pytest

pytest.importorskip("byteps_like._core")

from launcher import ROOT

from byteps_like.config import Config
from byteps_like.errors import ConfigError, DeadlineError
from byteps_like.worker import embedded, session
from byteps_like.worker.meeting import MeetingSeat

dist = pytest.importorskip("torch.distributed")

WORKER = """
import numpy as np
from byteps_like.config import Config
from byteps_like.dtypes import DType, Op
from byteps_like.worker.api import TensorSpec
from byteps_like.worker.session import connect

for attempt in range(2):  # once more after it was closed
    worker = connect(Config.from_env())
    (declared,) = worker.declare([TensorSpec("gradient", DType.FLOAT32, (1000,))])
    array = np.full(1000, worker.rank + 1.0, np.float32)
    worker.push_pull(declared, array.ctypes.data, Op.SUM).wait(20)
    worker.close()
    print(f"rank {worker.rank} of {worker.size} local {worker.local_rank} sum {array.min()} {array.max()}", flush=True)
"""


def test_ranks_meet_in_the_store_and_leave_nothing_there():
    store, base = dist.HashStore(), Config(job="meet", world_size=2, num_servers=1, shards=1, join_timeout=30.0)
    secrets, sizes = [], []

    def rank(number):
        found, services = embedded.bootstrap(
            replace(base, rank=number), MeetingSeat(store, number, 2, 30.0, "127.0.0.1")
        )
        secrets.append(found.secret)
        worker = embedded.Owning(session.connect(found), services)
        sizes.append(worker.size)
        worker.close()

    threads = [Thread(target=rank, args=(number,)) for number in (1, 0)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sizes == [2, 2]
    assert secrets[0] == secrets[1]
    assert len(secrets[0]) == 64
    assert store.num_keys() == 0


def test_a_rank_0_that_never_comes_is_named():
    config = Config(job="none", rank=1, world_size=2)
    with pytest.raises(DeadlineError, match=r"rank 1 of 2 has waited 0 s for rank 0 at the store"):
        embedded.bootstrap(config, MeetingSeat(dist.HashStore(), 1, 2, 0.2))


def test_a_secret_that_only_some_were_given_is_told_to_all():
    store, errors = dist.HashStore(), []

    def rank(number):
        config = Config(job="some", rank=number, world_size=2, secret="s" * 32 if number else "", num_servers=0)
        try:
            embedded.bootstrap(config, MeetingSeat(store, number, 2, 20.0, "127.0.0.1"))
        except ConfigError as error:
            errors.append(str(error))

    threads = [Thread(target=rank, args=(number,)) for number in (1, 0)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(errors) == 2 and all("rank 1 was given the job's secret, rank 0 was not" in text for text in errors)


def test_encryption_asks_for_a_secret_that_does_not_pass_through_the_store():
    store = dist.HashStore()
    config = Config(job="encrypted", rank=0, world_size=2, tls="on", num_servers=0)
    with pytest.raises(ConfigError, match=r"tls='on' needs the job's secret on every rank.*BYTEPS_LIKE_SECRET_FILE"):
        embedded.bootstrap(config, MeetingSeat(store, 0, 2, 5.0, "127.0.0.1"))


@pytest.mark.parametrize("servers", [0, 1])
def test_torchrun(warm_python, tmp_path, servers):
    script = tmp_path / "worker.py"
    script.write_text(WORKER)
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("BYTEPS_", "DMLC_"))}
    environment |= {"PYTHONPATH": str(ROOT), "BYTEPS_LIKE_SHARDS": "1", "BYTEPS_LIKE_NUM_SERVERS": str(servers)}
    command = [*warm_python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command += ["--no-python", *warm_python, script]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    expected = [f"rank {rank} of 2 local {rank} sum 3.0 3.0" for rank in (0, 1) for _ in range(2)]
    assert sorted(done.stdout.splitlines()) == expected, done.stderr
