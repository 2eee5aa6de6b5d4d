"""Local shares on their way to native servers and back: sums, bytes on the links, moves; two hosts of two ranks."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import torch

from byteps_like.dtypes import DType, Op
from byteps_like.torch.device import devices
from byteps_like.torch.job import runtime
from byteps_like.wire.frame import PARTITION_KEY, SHARE_SHIFT
from byteps_like.worker.api import Declared, Partition, Share, TensorSpec
from byteps_like.worker.engine.shares import shared
from tests.contract.mixed_job import DEADLINE, MixedJob, native_worker
from tests.fakes.native_job import run_native_job
from tests.fakes.settings import configure
from tests.fakes.software_cuda import SoftwareCuda, software_control
from tests.fakes.software_driver import needs_software_driver
from tests.scenarios.models import batch, distance, flat, loss_of, mlp, share

HOSTS = (0, 0, 1, 1)


def test_shares_cover_each_partition_once():
    spec = TensorSpec("x", DType.FLOAT16, (13,))
    declared = Declared(spec, 5, (Partition(5 << 16, 0, 18, 0, 1), Partition(5 << 16 | 1, 18, 8, 1, 0)))
    for count in range(2, 9):
        everybody = [shared(declared, Share(place, count)) for place in range(count)]
        parts = everybody[0].parts
        assert all(one.parts == parts and one.starts == everybody[0].starts for one in everybody)
        assert [part.offset for part in parts] == [sum(part.nbytes for part in parts[:n]) for n in range(len(parts))]
        assert sum(part.nbytes for part in parts) == 26 and all(part.nbytes for part in parts)
        for number, part in enumerate(parts):
            movers = [place for place, one in enumerate(everybody) if number not in one.absent]
            assert movers == [(part.key >> SHARE_SHIFT) - 1]
        for whole, part in enumerate(declared.partitions):
            own = [parts[number] for number in everybody[0].of(range(whole, whole + 1))]
            assert {(one.key & PARTITION_KEY, one.server, one.shard) for one in own} == {
                (part.key, part.server, part.shard)
            }
            assert sum(one.nbytes for one in own) == part.nbytes


@needs_software_driver
def test_each_gradient_of_a_host_crosses_once():
    """Four ranks train as one does; those of a host send servers one gradient, and control elements of each."""
    control = software_control()
    played, places = [SoftwareCuda(control, rank % 2) for rank in range(4)], threading.local()

    def find(tensor):
        device = getattr(places, "device", None)
        return device if device is not None and device.holds(tensor) else None

    def body(bps, rank, size):
        device = places.device = played[rank]
        configure(runtime.current(), local_shares="ipc")
        model, reference = mlp().float(), mlp().float()
        with device.in_stream_order():
            optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        plain, sent = torch.optim.SGD(reference.parameters(), lr=0.1), []
        for step in range(4):
            x, y = (item.float() for item in batch(step))
            with device.in_stream_order():
                loss_of(model, share(x, rank, size), share(y, rank, size)).backward()
                optimizer.step()
                optimizer.zero_grad()
            loss_of(reference, x, y).backward()
            plain.step()
            plain.zero_grad()
            device.current().stream.synchronize()
            sent.append(bps.stats()["payload_sent"])
        (arena,) = runtime.current().arenas.values()
        whole = arena.data.nbytes
        return distance(flat(model), flat(reference)), sent[3] - sent[2], whole, arena._memory.host.nbytes - whole

    with devices.replace(find):
        results = run_native_job(
            4, body, make=lambda config: native_worker(config, f"host {HOSTS[config.rank]}"), partition_bytes=1024
        )
    assert all(far < 1e-5 for far, *_ in results)
    for host in (results[:2], results[2:]):
        assert sum(sent for _, sent, *_ in host) == host[0][2] + 2 * host[0][3]
    assert control.software_gpu_misuse() == b""


def averages(worker: Any) -> list[Declared]:
    """Rounds of one tensor until it has moved twice; each rank brings its half, and gets the average of two hosts'."""
    own = Share(worker.rank % 2, 2)
    (declared,) = worker.declare([TensorSpec("w", DType.FLOAT32, (50_001,))])
    (ending,) = worker.declare([TensorSpec("over", DType.FLOAT32, (1,))])
    found, number = [declared], 0
    while len(found) < 3 or number < 3:
        declared = worker.placed(declared)
        found += [declared] if declared is not found[-1] else []
        before = np.arange(50_001, dtype=np.float32) % 1000 + 10 * worker.rank + number
        array = before.copy()
        parts = range(len(declared.partitions))
        worker.push_pull(declared, array.ctypes.data, Op.AVERAGE, parts=parts, share=own).wait(DEADLINE)
        mean = before - 10 * worker.rank + 10 * (own.place + 1)  # of ranks 0 and 2, of ranks 1 and 3
        cut = shared(declared, own)
        for place, part in enumerate(cut.parts):
            span = slice(part.offset // 4, (part.offset + part.nbytes) // 4)
            assert (array[span] == (before if place in cut.absent else mean)[span]).all()
        if worker.rank == 1 and number in (0, 4):
            worker.replan("test", partition_bytes=(64 << 10) >> number // 4)
        over = np.zeros(1, np.float32)
        worker.push_pull(ending, over.ctypes.data, Op.SUM).wait(DEADLINE)
        number += 1
        assert number < 1000, "it does not move"
    return found


def test_shares_move_with_their_tensor_and_servers_free_what_was_left():
    job = MixedJob([native_worker] * 4, partition_bytes=1 << 20)
    try:
        found = job.everybody(averages)
        assert all(places == found[0] for places in found) and len(found[0]) == 3
        last = found[0][-1]
        expected = len(shared(last, Share(0, 2)).parts) + 1
        end = time.monotonic() + DEADLINE
        while held(job) != expected and time.monotonic() < end:
            time.sleep(0.01)
        assert held(job) == expected
    finally:
        job.close()


def held(job: MixedJob) -> int:
    return sum(server.native.stats()["keys"] for server in job.servers)
