"""Benchmarks: each is a module, run from the root of the checkout: `python -m bench.training.steps --help`.

A room holds one subject. Beside a benchmark stand the worker that it starts as the ranks of its job (`*_worker.py`) and
what both of them know (`*_plan.py`). Here is what the rooms share. Results go to out/. None of this is installed.
"""
