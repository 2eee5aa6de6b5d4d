"""What a worker process does below the framework: joins, declares, pushes and pulls.

Private: coded, local_group, surviving.
"""
