"""What happens in elastic jobs, as recorded: pictures of a death and of a join."""
