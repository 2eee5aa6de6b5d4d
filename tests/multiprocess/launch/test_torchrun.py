"""Under torchrun the workers need no further process: ranks meet in torchrun's store, rank 0 embeds the rest."""

import os
import subprocess
import sys
from dataclasses import replace
from threading import Condition, Thread

import pytest

pytest.importorskip("byteps_like._core")

from launcher import ROOT

from byteps_like.config import Config
from byteps_like.errors import ConfigError, DeadlineError
from byteps_like.worker import embedded, session

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


class FakeStore:
    """What TCPStore does, between threads."""

    def __init__(self):
        self.values, self.changed, self.deleted = {}, Condition(), []

    def set(self, key, value):
        with self.changed:
            self.values[key] = value
            self.changed.notify_all()

    def get(self, key):
        with self.changed:
            if not self.changed.wait_for(lambda: key in self.values, 10):
                raise RuntimeError(f"wait timeout after 10 s, keys: {key}")
            return self.values[key].encode()

    def delete_key(self, key):
        self.deleted.append(key)
        return self.values.pop(key, None) is not None


def test_ranks_meet_in_the_store_and_the_secret_does_not_stay_there():
    store, base = FakeStore(), Config(job="meet", world_size=2, rendezvous_host="127.0.0.1", num_servers=1, shards=1)
    secrets, sizes = [], []

    def rank(number):
        found, services = embedded.bootstrap(replace(base, rank=number), lambda _: store)
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
    assert [key.rpartition("/")[2] for key in store.values] == ["scheduler"]
    assert [key.rpartition("/")[2] for key in store.deleted] == ["secret"]


def test_a_rank_0_that_never_comes_is_named():
    class Empty(FakeStore):
        def get(self, key):
            raise RuntimeError("wait timeout")

    config = Config(job="none", rank=1, world_size=2, rendezvous_host="h", rendezvous_port=1)
    with pytest.raises(DeadlineError, match="rank 0 did not publish its scheduler in torchrun's store at h:1"):
        embedded.bootstrap(config, lambda _: Empty())


def test_a_master_address_without_torchrun_is_not_mistaken_for_its_store():
    config = Config.from_env({"MASTER_ADDR": "localhost", "MASTER_PORT": "1", "RANK": "0", "WORLD_SIZE": "2"})
    with pytest.raises(ConfigError, match="BYTEPS_LIKE_SCHEDULER"):
        embedded.bootstrap(config)


@pytest.mark.parametrize("servers", [0, 1])
def test_torchrun(tmp_path, servers):
    pytest.importorskip("torch")
    script = tmp_path / "worker.py"
    script.write_text(WORKER)
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("BYTEPS_", "DMLC_"))}
    environment |= {"PYTHONPATH": str(ROOT), "BYTEPS_LIKE_SHARDS": "1", "BYTEPS_LIKE_NUM_SERVERS": str(servers)}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", script]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    expected = [f"rank {rank} of 2 local {rank} sum 3.0 3.0" for rank in (0, 1) for _ in range(2)]
    assert sorted(done.stdout.splitlines()) == expected, done.stderr
