"""Programs of other makers inside a sandbox: started, spoken to in their protocol, and ended."""
