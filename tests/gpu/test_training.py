"""Training on a GPU equals that on the CPU; ranks are threads on one device, each on a stream of its own."""

from __future__ import annotations

import contextlib
import gc
import importlib.util
from functools import partial

import pytest
import torch

from byteps_like.errors import InvalidArgumentError
from byteps_like.torch.job import runtime
from tests.fakes.ddp_bucket import Bucket
from tests.fakes.native_job import run_native_job
from tests.fakes.settings import configure
from tests.fakes.thread_process_groups import run_groups
from tests.fakes.thread_world import ThreadWorld, run_world
from tests.scenarios.devices import training as scenarios

CUDA = torch.device("cuda", 0)
needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="torch.compile needs Triton for GPUs: pip install triton"
)


def on_stream(body, *more):
    """As `body`, in a stream of the thread's own."""

    def within(bps, rank, size, *args):
        with torch.cuda.stream(torch.cuda.Stream(CUDA)):
            return body(bps, rank, size, CUDA, *more, *args)

    return within


@pytest.mark.parametrize("servers", [True, False], ids=["servers", "allreduce"])
@pytest.mark.parametrize("body", [scenarios.equals_one_process, scenarios.scaled, scenarios.skipped])
def test_training(body, servers):
    run_world(2, on_stream(body), world=ThreadWorld(2, partition_bytes=1024), servers=servers)


@pytest.mark.parametrize("body", [scenarios.equals_one_process, scenarios.scaled, scenarios.skipped])
def test_training_by_the_engine(body):
    """Over a native server: the stager copies down and up, and streams wait for it."""

    def counted(bps, rank, size, device):
        body(bps, rank, size, device)
        return runtime.current().stats()["staged_down"]

    assert all(run_native_job(2, on_stream(counted), partition_bytes=1024))


@pytest.mark.parametrize("compression", [None, "bf16", "fp16", "int8", "onebit:block=64", "thc4", "topk"])
def test_what_comes_of_gradients_has_the_bits_of_the_cpu(compression):
    """By DDP's hook, called with the same gradients on both; with feedback, rounds depend on those before."""

    def body(bps, rank, size, device):
        configure(runtime.current(), min_compress_bytes=0)
        is_cast = compression in (None, "bf16", "fp16")
        state = bps.DDPHookState(compression=compression if is_cast else bps.Compress(compression, feedback=True))
        parameters, found = [torch.zeros(700, 64, device=device)], []
        for step in range(3):
            generator = torch.Generator().manual_seed(10 * step + rank)
            bucket = Bucket(0, parameters, [torch.randn(700, 64, generator=generator).to(device)])
            found.append(bps.ddp_hook(state, bucket).wait().cpu())
        return torch.cat(found)

    expected = run_native_job(2, body, torch.device("cpu"), partition_bytes=1 << 16)
    found = run_native_job(2, on_stream(body), partition_bytes=1 << 16)
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


def test_fused_optimizers_are_told_of_overflows():
    run_world(2, on_stream(partial(scenarios.skipped, fused=True)))


@needs_triton
@pytest.mark.parametrize("body", [scenarios.compiled, scenarios.hooked])
def test_compiled_models(body):
    run_world(1, on_stream(body, "inductor"))


@contextlib.contextmanager
def capturing():
    """By this thread alone: others of ours go on with what they have to do meanwhile."""
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream(CUDA)):
        graph.capture_begin(capture_error_mode="thread_local")
        try:
            yield
        finally:
            with contextlib.suppress(RuntimeError):  # what a refused call has begun may be no whole graph
                graph.capture_end()


@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty")
def test_graphs_are_refused_by_all_that_send():
    def collective(group, rank, size):
        tensor = torch.ones(2, device=CUDA)
        group.allreduce([tensor]).wait()
        with capturing(), pytest.raises(InvalidArgumentError, match="allreduce while a CUDA graph"):
            group.allreduce([tensor])

    run_world(1, scenarios.graphs_refused, CUDA, capturing)
    run_groups(1, collective)


def test_work_waits_on_streams():
    def body(group, rank, size):
        with torch.cuda.stream(torch.cuda.Stream(CUDA)):
            tensor = torch.zeros(1 << 20, device=CUDA)
            torch.cuda._sleep(50_000_000)
            tensor += rank + 1.0  # the copy down has to come after it
            group.allreduce([tensor]).wait()
            total = tensor.sum() / tensor.numel()  # and this after the copy up
            future = group.allreduce([tensor]).get_future().wait()[0]
            return total.item(), future.mean().item()

    assert run_groups(2, body) == [(3.0, 6.0)] * 2


@pytest.fixture(params=[False, True], ids=["hosts wait", "streams wait"])
def who_waits(request):
    if request.param:
        request.getfixturevalue("stream_waits")


@pytest.mark.usefixtures("who_waits")
def test_what_is_behind_block_current_stream_comes_after_the_other_rank():

    def body(group, rank, size):
        with torch.cuda.stream(torch.cuda.Stream(CUDA)):
            tensor = torch.full((1 << 20,), float(rank), device=CUDA)
            tensor += 1.0  # loaded before any stream waits, since loading may wait for all of them
            for _ in range(5):
                group.allreduce([tensor], torch.distributed.ReduceOp.AVG).block_current_stream()
                tensor += 1.0
            return tensor.mean().item()

    assert run_groups(2, body) == [6.5] * 2


def test_no_memory_is_left():
    def left() -> int:
        gc.collect()
        torch.cuda.synchronize()
        torch._C._cuda_clearCublasWorkspaces()  # one a stream, kept for good
        return torch.cuda.memory_allocated()

    run_world(2, on_stream(scenarios.equals_one_process))
    before = left()
    for servers in (True, False):
        run_world(2, on_stream(scenarios.equals_one_process), servers=servers)
    assert left() == before
