"""This process as a member of a job.

Here live the runtime (what a process has while it is a member), joining and leaving, where ranks meet, the routes
that data may take, names of operations, process sets, join(), pacing and tracing of steps. Above it stand all rooms
that send something; it imports device only.

Private: backlog, beginning, join, lookout.
"""
