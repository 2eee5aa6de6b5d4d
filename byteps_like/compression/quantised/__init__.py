"""References of the codecs that send fewer bits of each element. One codec, one file.

The registry imports it; it imports the codec's contract.

Private: codes, quantised, rotation.
"""
