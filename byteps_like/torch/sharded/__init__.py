"""Optimizers of which each rank keeps and updates its share. After ZeRO (SC'20).

The factory imports it; it imports optimizer and what is below.

Private: arena, chunk, gradient, layout, reducer, state, update, wire.
"""
