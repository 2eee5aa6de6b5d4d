"""Starting jobs and laboratories of hosts on one machine."""
