"""Parts of the runtime by themselves: CPU kernels, RDMA links, the scheduler, and the timeline's recorder."""
