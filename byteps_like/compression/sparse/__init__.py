"""References of the codecs that send fewer elements. One codec, one file.

The registry imports it; it imports the codec's contract.

Private: sparse.
"""
