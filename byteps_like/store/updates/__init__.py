"""What a store key does to its value with a combined gradient, in NumPy: references of server/update.

In comes an update as text ("adam:lr=0.001"), out a `ValueUpdate`. The native twins give the same bits.

Private: layerwise, proximal.
"""
