"""Sums of sparse tensors: entries travel instead of all their zeros.

In come sparse COO tensors; out go coalesced sums. `choice` says which way the next round takes. Operations and
gradients import it; it imports calls and what is below.

Private: shadow.
"""
