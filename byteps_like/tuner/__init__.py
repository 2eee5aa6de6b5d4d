"""Finding how gradients should travel, while training runs: which settings there are, which to try next, the log."""
