"""What is planned before a job or found while it runs (predictions, settings, shifts), against measured times."""
