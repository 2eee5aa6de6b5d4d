"""The hook for torch's own DistributedDataParallel, with codecs: real buckets alone, made-up ones on several ranks."""

from __future__ import annotations

import time
import weakref

import numpy as np
import pytest
import torch
import torch.distributed as dist

import byteps_like.torch as bps
from byteps_like.compression.registry import codec_of
from byteps_like.torch.ddp import comm_hook
from byteps_like.torch.job import runtime
from byteps_like.worker.local import CompletedHandle, LocalWorker
from tests.fakes.codec_rounds import by_reference
from tests.fakes.ddp_bucket import Bucket
from tests.fakes.thread_world import run_world
from tests.scenarios.optimizers import compression as scenario

CODEC = codec_of("onebit:block=64")


def test_matrices_are_encoded_and_what_is_left_follows_them_to_other_buckets():
    size, shape, numel = 2, (128, 129), 128 * 129

    def body(bps, rank, size):
        state = bps.DDPHookState(compression=bps.Compress(CODEC, feedback=True))
        one, bias, two = (torch.zeros(item) for item in (shape, (7,), shape))
        found = []
        for step in range(4):
            values = [scenario.gradient(step, rank, item.shape, seed) for seed, item in enumerate((one, bias, two))]
            both = [Bucket(0, [one, bias], values[:2]), Bucket(1, [two], values[2:])]
            whole = [Bucket(0, [two, one, bias], [values[2], values[0], values[1]])]
            buckets = both if step < 2 else whole
            for future in [bps.ddp_hook(state, bucket) for bucket in buckets]:
                future.wait()
            bps.barrier()  # one thread waits for the buckets of all ranks of this process, in their order
            landed = {
                id(key): value
                for item in buckets
                for key, value in zip(item.parameters(), item.gradients(), strict=True)
            }
            found.append((landed[id(one)].clone(), landed[id(bias)].clone()))
        return found

    results = run_world(size, body)
    left = [np.zeros(numel, np.float32)] * size
    for step in range(2):
        xs = [scenario.gradient(step, rank, shape).reshape(-1).numpy() + left[rank] for rank in range(size)]
        done = by_reference(CODEC, xs, 0, step, 1 / size)
        left = done.residuals
        matrix, bias = results[0][step]
        torch.testing.assert_close(matrix.reshape(-1), torch.from_numpy(np.float32(done.out)))
        mean = sum(scenario.gradient(step, rank, (7,), 1) for rank in range(size)) / size
        torch.testing.assert_close(bias, mean)
    xs = [
        np.concatenate(
            [scenario.gradient(2, rank, shape, 2).reshape(-1), scenario.gradient(2, rank, shape).reshape(-1)]
        )
        for rank in range(size)
    ]
    # The second matrix lies first now; of the first, what was left comes back.
    after = results[0][2][0].reshape(-1).numpy()
    signs = sum(np.sign(x[numel:] + rest) for x, rest in zip(xs, left, strict=True))
    assert (np.sign(after)[signs != 0] == np.sign(signs)[signs != 0]).mean() > 0.99
    assert all(torch.equal(a[0], b[0]) for a, b in zip(results[0], results[1], strict=True))


def test_with_torchs_own_class():
    model = torch.nn.Sequential(torch.nn.Linear(128, 129), torch.nn.Tanh(), torch.nn.Linear(129, 130))
    plain = torch.nn.Sequential(torch.nn.Linear(128, 129), torch.nn.Tanh(), torch.nn.Linear(129, 130))
    plain.load_state_dict(model.state_dict())
    x = torch.randn(4, 128)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        with runtime.bound(LocalWorker()):
            replica = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.02)
            replica.register_comm_hook(bps.DDPHookState(compression="onebit:block=64"), bps.ddp_hook)
            for _ in range(3):
                replica.zero_grad()
                replica(x).square().mean().backward()
    finally:
        dist.destroy_process_group()
    plain(x).square().mean().backward()
    for ours, exact in zip(model.parameters(), plain.parameters(), strict=True):
        if ours.dim() == 1:
            torch.testing.assert_close(ours.grad, exact.grad)
        else:
            assert torch.equal(ours.grad.sign()[exact.grad != 0], exact.grad.sign()[exact.grad != 0])
            assert ours.grad.abs().unique().numel() <= ours.numel() // 64 + 1


@pytest.mark.parametrize("wrong", [{"a*": "onebit"}, bps.Compression.powersgd(), "twobit"])
def test_what_a_hook_cannot_do(wrong):
    with pytest.raises(bps.InvalidArgumentError):
        bps.DDPHookState(compression=wrong)


def test_buckets_that_have_landed_are_not_kept_by_the_thread_that_waited():
    """Their memory is the device's, and streams and events go with it."""
    waiter, handle = comm_hook._Waiter(), CompletedHandle()
    waiter.put(handle, ended := torch.futures.Future())
    kept = weakref.ref(handle)
    ended.wait()
    del handle
    end = time.monotonic() + 20.0
    while kept() is not None and time.monotonic() < end:
        time.sleep(0.001)
    assert kept() is None
