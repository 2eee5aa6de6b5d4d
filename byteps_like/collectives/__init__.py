"""Collectives among workers: schedules, their checker, and the groups that run them.

Private: group.
"""
