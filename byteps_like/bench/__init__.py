"""Benchmarks against rivals and limits; the modules of bench/ and `byteps-like bench` are their doors."""
