"""Features of the Linux kernel that confine a process: by ctypes and the standard library only."""
