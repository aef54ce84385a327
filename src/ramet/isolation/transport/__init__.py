"""Lines between a kernel and a machine: frames over connections that break, a listener for pods, and its dialer."""
