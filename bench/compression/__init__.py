"""Codecs: what they cost on one core and save on a network, and how well models train with them."""
