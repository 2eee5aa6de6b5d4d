"""Elastic jobs: pictures of a death and of a join as recorded, what it costs to be ready for them, and what copies of
values and joining workers cost."""
