"""What rows and contributions go through on their way from a worker to servers, and back. In: keys and rows, or parts
of tensors; out: those that go, and bytes that stand for them. A new one is a file, and a row in the registry.

Private: codec_filter, fixed_float, host, kkt, noise, zlib_stream.
"""
