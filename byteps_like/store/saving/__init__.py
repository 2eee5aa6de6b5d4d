"""Checkpoints of what servers keep: a directory of parts and a manifest, written and read by all ranks together.

`Store` and `KV` come in; `worker.keeping.Keeps.ask` does the work on servers. `recut` is pure.

Private: reading, recut.
"""
