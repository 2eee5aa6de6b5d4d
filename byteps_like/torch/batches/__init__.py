"""Batches by speed: how many samples of a global batch each rank takes, so that all take the same time for theirs.

In come a batch size and the ranks' own times; out go whole numbers, the same on all ranks, that add up to it. The
package itself imports it; it imports ops and what is below.

Private: apportion, own_speed, terms.
"""
