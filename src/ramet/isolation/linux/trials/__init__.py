"""Each mechanism tried once, in a throw-away process: what must fail has to fail. For `ramet.isolation.probe`."""
