"""Benchmarks against rivals and limits; the scripts of bench/ and `byteps-like bench` are their doors."""
