"""What PyTorch's own tests of DDP, FSDP, DTensor and checkpoints look at, over our backend; one line a behaviour."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.multiprocess.c10d.pool import C10dPool

DDP = [
    "no_sync_accumulates",
    "static_graph_with_reentrant_checkpoints",
    "find_unused_parameters",
    "gradient_as_bucket_view",
    "buffers_come_from_rank_0",
    "sync_batch_norm_is_refused_on_cpu",
    "hooks",
    "built_in_hooks",
    "uneven_inputs_join",
    "uneven_inputs_can_raise_on_all_ranks",
    "models_that_differ_are_refused",
    "zero1_state_is_consolidated",
    "compiled_model",
]

SHARDED = [
    "fsdp2_in_bfloat16",
    "fsdp2_accumulates_without_reduction",
    "fsdp1",
    "tensors_change_their_layout",
    "meshes_of_two_dimensions",
]


@pytest.mark.parametrize("body", DDP)
def test_ddp(c10d_pool: C10dPool, body: str) -> None:
    c10d_pool.run(3, "ddp_bodies", body)


@pytest.mark.parametrize("body", SHARDED)
def test_sharded(c10d_pool: C10dPool, body: str) -> None:
    c10d_pool.run(4, "sharded_bodies", body)


@pytest.mark.parametrize("in_background", [False, True])
def test_checkpoint_is_loaded_by_another_number_of_ranks(
    c10d_pool: C10dPool, tmp_path: Path, in_background: bool
) -> None:
    c10d_pool.run(4, "sharded_bodies", "checkpoint_is_saved", str(tmp_path / "saved"), in_background)
    c10d_pool.run(2, "sharded_bodies", "checkpoint_is_loaded", str(tmp_path / "saved"))
