"""What processes of a job find in their environment."""

from __future__ import annotations

from pathlib import Path

from byteps_like.launch.environment import JobShape, of_service, of_worker


def shape():
    return JobShape(job="trial", secret_file=Path("/tmp/secret"), scheduler="host:1", workers=2, servers=1, shards=None)


def test_workers_have_all_queues_of_a_gpu_unless_told_otherwise():
    """So that a stream that waits for the network holds up none that doesn't."""
    name = "CUDA_DEVICE_MAX_CONNECTIONS"
    assert of_worker({}, shape(), 0, None)[name] == "32"
    assert of_worker({name: "1"}, shape(), 0, None)[name] == "1"
    assert name not in of_service({}, shape(), "server", 0)
