"""A worker over the C++ engine: its rounds, where its tensors go, what servers keep for it.

Private: kept, kept_table, moves, waiting.
"""
