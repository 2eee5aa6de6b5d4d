"""Codecs: fewer bytes per gradient, and how such bytes are summed. See docs/how-to/compression.md."""
