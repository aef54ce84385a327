"""The models that agents use: providers by name, scripted and offline models, retries, prices."""
