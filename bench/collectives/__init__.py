"""Collectives alone: against other libraries, against the limit of the links, and as the selector chooses them."""
