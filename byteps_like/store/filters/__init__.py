"""What rows go through on their way from a worker to servers, and back. In: keys and rows; out: those that go, and
bytes that stand for them. A new one is a file, and a row in the registry.

Private: fixed_float, host, kkt, noise, zlib_stream.
"""
