"""Collectives against gloo, OpenMPI and the limit of the path: `byteps-like bench`, run from a checkout.

    python -m bench.collectives.compare all_reduce -n 4 --compare gloo,mpi
    python -m bench.collectives.compare all_reduce --lab 4x1gbit -n 4

See byteps_like/bench/collectives.py for what the figures mean, and --help.
"""

from byteps_like.cli.bench import app

if __name__ == "__main__":
    app()
