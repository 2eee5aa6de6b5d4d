"""Tensors and the devices they are on.

Here live the seam to GPUs (api), its implementations, page-locked memory and copies to and from it, and checks of
tensors before they travel. In come torch tensors; out go host addresses, streams and events. Everybody above may
import it; it imports no other room.

Private: cuda, plain.
"""
