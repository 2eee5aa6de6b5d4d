"""Cuts: the state of a whole job at one step boundary, on disk, for a job of other numbers of workers and servers.

In come what a state has kept at a commit (`content.CutContent`), and directories; out go directories that hold one cut
each: parts, which all ranks write while training goes on, and a manifest, which makes them one. Only the rooms of
torch.elastic import it. manifest, residuals and shares know neither ranks nor the job.

Private: index, shares, writing.
"""
