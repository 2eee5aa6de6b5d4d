"""A worker in pure Python, NumPy and pyzmq: for hosts without the native core, notebooks and tools."""
