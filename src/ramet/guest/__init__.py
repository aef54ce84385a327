"""The program inside a sandbox: the guest's end of the channel."""
