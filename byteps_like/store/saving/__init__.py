"""Checkpoints of what is kept: a directory of parts and a manifest, written and read by all ranks together.

`saved.Saved` is what they are made of: what servers keep of a `Store` or a `KV` (on_servers), by
`worker.keeping.Keeps.ask`, or what all ranks hold alike (alike). `recut` is pure.

Private: aside, reading, recut.
"""
