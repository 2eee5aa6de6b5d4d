"""DistributedDataParallel, and a communication hook for torch's own.

The package itself imports it; it imports adapt and what is below.

Private: hook_buckets.
"""
