"""What a cluster will do, said beforehand: workloads, a discrete-event model of the runtime, and its calibration.

Private: call, clock, collective, collective_route, link, predict, queue, route, server, server_route, step.
"""
