"""Control plane: the scheduler, its client, and who proves what to whom."""
