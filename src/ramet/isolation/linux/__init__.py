"""What the Linux kernel offers for keeping a process in: by ctypes and the standard library only."""
