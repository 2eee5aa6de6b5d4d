"""Functions of users that run on servers: their names, what they are given, and how servers of this process run them.

In come functions by decorators (registry), and calls of the native core (host); out go changed values, and errors.

Private: host, views.
"""
