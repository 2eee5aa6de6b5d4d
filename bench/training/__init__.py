"""Training steps over shaped links: our ways to distribute them beside gloo's, plain servers and one another."""
