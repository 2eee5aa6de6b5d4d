"""Sums through servers: how long they take, where servers are placed, and what goes first."""
