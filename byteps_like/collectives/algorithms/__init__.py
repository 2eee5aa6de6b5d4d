"""One file per algorithm: generators of schedules for one rank, each with its cost as a function beside it."""
