"""Policies: what becomes of each push to a store key, when the next version is made, and who may read it."""
