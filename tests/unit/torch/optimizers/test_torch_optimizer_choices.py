"""Options of DistributedOptimizer that exclude each other."""

from __future__ import annotations

import re

import pytest
import torch

import byteps_like.torch as bps
from byteps_like.errors import InvalidArgumentError
from byteps_like.torch.job import runtime
from byteps_like.torch.optimizer.choices import CONFLICTS
from byteps_like.worker.local import LocalWorker
from tests.fakes.settings import configure

OPTIONS = {
    "op=Adasum": {"op": bps.Adasum},
    "gradient_predivide_factor": {"gradient_predivide_factor": 2.0},
    "route='server'": {"route": "server"},
    "route='allreduce'": {"route": "allreduce"},
    "process_set": {"process_set": bps.global_process_set},
    "consistency": {"consistency": "asp"},
    "cross_barrier": {"cross_barrier": True},
    "shard": {"shard": "optimizer"},
    "tune": {"tune": "on"},
    "sufficient_factors": {"sufficient_factors": "auto"},
    "OnebitAdam": {},
    "compression": {"compression": "fp16"},
    "a codec": {"compression": "onebit"},
    "powersgd": {"compression": bps.Compression.powersgd()},
    "rows": {"compression": "rows"},
    "a codec's warm-up": {"compression": bps.Compress("onebit", warmup=((5, None),))},
    "momentum before a codec": {"compression": bps.Compress("onebit", momentum=0.9)},
    "the optimizer's momentum": {},
}


@pytest.mark.parametrize(("one", "other", "why"), CONFLICTS)
def test_both_are_named_with_the_cause(one, other, why):
    model = torch.nn.Linear(2, 2)
    optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    if "OnebitAdam" in (one, other):
        optimizer = bps.OnebitAdam(model.parameters())
    with runtime.bound(LocalWorker()), pytest.raises(InvalidArgumentError, match=re.escape(why)) as caught:
        bps.DistributedOptimizer(optimizer, model=model, **OPTIONS[one], **OPTIONS[other])
    assert one in str(caught.value) and other in str(caught.value)


@pytest.mark.parametrize(
    "names",
    [
        ("cross_barrier", "tune"),
        ("cross_barrier", "gradient_predivide_factor"),
        ("cross_barrier", "a codec's warm-up"),
        ("cross_barrier", "rows"),
        ("cross_barrier", "powersgd"),
        ("cross_barrier", "sufficient_factors"),
        ("sufficient_factors", "compression"),
        ("sufficient_factors", "powersgd"),
        ("shard", "tune"),
        ("shard", "cross_barrier"),
        ("shard", "cross_barrier", "tune"),
        ("shard", "cross_barrier", "a codec's warm-up"),
        ("shard", "compression"),
        ("shard", "a codec's warm-up"),
        ("shard", "gradient_predivide_factor"),
    ],
)
def test_what_goes_together_is_made(names):
    model = torch.nn.Linear(2, 2)
    options = {key: value for name in names for key, value in OPTIONS[name].items()}
    with runtime.bound(LocalWorker()):
        bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model=model, **options).close()


@pytest.mark.parametrize(
    ("setting", "codecs"),
    [("powersgd", []), ("rows", []), ("a -> rows; * -> int8", ["int"]), ("* -> int8", ["int"])],
)
def test_of_a_setting_for_the_job_shards_leave_out_what_they_cannot_take(setting, codecs, caplog):
    unfit = setting != "* -> int8"
    with runtime.bound(LocalWorker()) as job, caplog.at_level("WARNING"):
        configure(job, compression=setting, min_compress_bytes=0)
        for _ in range(2):
            named = [(name, torch.nn.Parameter(torch.ones(8, 8))) for name in ("a", "b")]
            inner = torch.optim.SGD([p for _, p in named], lr=0.1)
            optimizer = bps.DistributedOptimizer(inner, named, shard="optimizer")
            arenas = optimizer._distribution.reducer.arenas
            assert [arena.codec.partition(":")[0] for arena in arenas if arena.codec] == codecs
            assert len(arenas) == (2 if unfit and codecs else 1)
            optimizer.close()
    told = [record.getMessage() for record in caplog.records if "travel raw" in record.getMessage()]
    assert len(told) == unfit and all(repr(setting) in line for line in told)


def test_of_an_argument_shards_still_refuse_what_they_cannot_take():
    model = torch.nn.Linear(2, 2)
    with runtime.bound(LocalWorker()) as job:
        configure(job, compression="rows")
        with pytest.raises(InvalidArgumentError, match="shard and powersgd"):
            bps.DistributedOptimizer(
                torch.optim.SGD(model.parameters(), lr=0.1), compression="powersgd", shard="optimizer"
            )


@pytest.mark.parametrize("options", [{"shard": "everything"}, {"tune": 3}, {"backward_passes_per_step": 0}])
def test_what_makes_no_sense_alone(options):
    model = torch.nn.Linear(2, 2)
    with runtime.bound(LocalWorker()), pytest.raises(InvalidArgumentError, match=next(iter(options))):
        bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), **options)
