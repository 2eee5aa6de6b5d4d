"""The summation server process around the native store."""
