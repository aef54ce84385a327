"""Control of live runs by their operator."""
