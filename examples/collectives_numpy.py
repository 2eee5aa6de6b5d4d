"""Collectives without torch: NumPy arrays, by address, over a group of workers.

    byteps-like run -n 4 -s 0 -- python examples/collectives_numpy.py

A group's calls return at once; `wait` blocks, and the array belongs to the call until then. The same name is the same
group on all ranks, so making one sends no message. Alone it is a group of one.
"""

import argparse
import ctypes

import numpy as np

from byteps_like.collectives.api import CallOptions
from byteps_like.config import Config
from byteps_like.dtypes import DType, Op
from byteps_like.worker.api import SharedMemory
from byteps_like.worker.session import connect


def array_over(memory: SharedMemory) -> np.ndarray:
    """The float32 array in memory that the ranks of this host share: collectives need not copy it."""
    return np.frombuffer((ctypes.c_char * memory.nbytes).from_address(memory.address), np.float32)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--elements", type=int, default=100_000, help="of the vector that is summed")
    elements = parser.parse_args().elements
    worker = connect(Config.from_env())
    group = worker.group("example")
    rank, size = group.rank, group.size

    # A sum in place, of numbers that other ranks of this host may read where they lie.
    memory = worker.empty_shared(4 * elements)
    vector = array_over(memory)
    vector[:] = np.arange(elements) % 100 + rank
    group.all_reduce(vector.ctypes.data, vector.ctypes.data, elements, DType.FLOAT32, Op.SUM).wait()
    assert np.array_equal(vector, size * (np.arange(elements) % 100) + sum(range(size)))

    # Two calls in flight: an uneven all-gather, of rank + 1 numbers from each, by an algorithm that is named, ...
    own, counts = np.full(rank + 1, rank, np.int64), [other + 1 for other in range(size)]
    everybody = np.empty(sum(counts), np.int64)
    ring = CallOptions(algorithm="ring", timeout=30)
    gathering = group.all_gather(own.ctypes.data, everybody.ctypes.data, counts, DType.INT64, ring)
    # ... and a message to the next rank, which waits for no collective.
    greeting, heard = np.array([rank], np.int32), np.empty(1, np.int32)
    sending = group.send(greeting.ctypes.data, greeting.nbytes, (rank + 1) % size)
    receiving = group.receive(heard.ctypes.data, heard.nbytes, (rank - 1) % size)
    for operation in (gathering, sending, receiving):
        operation.wait()
    assert np.array_equal(everybody, np.repeat(np.arange(size), counts))
    assert heard[0] == (rank - 1) % size

    # Another group, of even ranks alone. No message is needed to make it.
    if rank % 2 == 0:
        evens = worker.group("evens", range(0, size, 2))
        numbers = np.array([float(rank)])
        evens.all_reduce(numbers.ctypes.data, numbers.ctypes.data, 1, DType.FLOAT64, Op.MAX).wait()
        assert numbers[0] == max(range(0, size, 2))

    group.barrier().wait()
    print(f"rank {rank} of {size}: sums, parts and messages are right")
    worker.close()


if __name__ == "__main__":
    main()
