"""What is remembered, and where: one contract, three stores held to one suite. `ramet.store.contract` is the way in."""
