"""Benchmarks against rivals and limits; the modules of bench/ and `byteps-like bench` are their doors.

Private: board, buffers, contenders, openmpi, ours, processes, start, world.
"""
