"""Lines between a kernel and a machine: frames over connections that break, a door for pods, and the way to it."""
