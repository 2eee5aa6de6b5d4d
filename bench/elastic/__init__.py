"""What happens in elastic jobs: pictures of a death and of a join as recorded, and what copies of values cost."""
