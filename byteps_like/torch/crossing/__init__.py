"""Optimizers whose step() doesn't wait: the next forward does, layer by layer. After ByteScheduler (SOSP'19).

The factory imports it; it imports optimizer and what is below.

Private: flight, guards, step.
"""
