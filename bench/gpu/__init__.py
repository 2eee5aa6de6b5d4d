"""What a GPU makes of byteps_like: `python -m bench.gpu` runs all parts."""
