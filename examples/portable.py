"""A NumPy worker in a byteps_like job: no torch, no native core.

Least squares by gradient descent, each worker with its own half of the data:

    byteps-like run -n 2 -s 1 -- python examples/portable.py

The same script can join a job of native workers as one of its ranks, from a notebook or from another machine:
set BYTEPS_LIKE_SCHEDULER, BYTEPS_LIKE_SECRET_FILE, BYTEPS_LIKE_RANK and BYTEPS_LIKE_SIZE. Alone it is a world of one.
"""

import numpy as np

import byteps_like.portable as bps

STEPS = 60
RATE = 0.2
TRUTH = np.array([2.0, -1.0, 0.5, 3.0])


def own_data() -> tuple[np.ndarray, np.ndarray]:
    """This rank's part of the data: different on each."""
    generator = np.random.default_rng(bps.rank())
    inputs = generator.normal(size=(200, len(TRUTH)))
    return inputs, inputs @ TRUTH + generator.normal(scale=0.01, size=200)


def main() -> None:
    bps.init()
    inputs, targets = own_data()
    # All start from the weights of rank 0.
    weights = bps.broadcast(np.random.default_rng(bps.rank()).normal(size=len(TRUTH)), name="weights")
    for step in range(STEPS):
        error = inputs @ weights - targets
        gradient = bps.push_pull(inputs.T @ error / len(targets), name="gradient")
        weights = weights - RATE * gradient
        if step % 20 == 19 and bps.rank() == 0:
            print(f"step {step + 1}: loss {np.mean(error**2):.5f}, weights {np.round(weights, 3)}")
    # Every rank holds the same weights, bit for bit.
    assert np.array_equal(bps.broadcast(weights, name="check"), weights)
    assert np.allclose(weights, TRUTH, atol=0.01), weights
    bps.barrier()
    print(f"rank {bps.rank()} of {bps.size()}: {bps.stats()['payload_sent']} bytes sent, all ranks agree")
    bps.shutdown()


if __name__ == "__main__":
    main()
