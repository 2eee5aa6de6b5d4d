"""What a cluster will do, said beforehand: workloads, a discrete-event model of the runtime, and its calibration."""
