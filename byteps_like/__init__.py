"""byteps_like: a parameter-server and collective communication runtime for PyTorch."""

__version__ = "0.1.0"
