"""The page: trees of agents in a browser, served by `ramet ui` and by `ramet serve`."""
