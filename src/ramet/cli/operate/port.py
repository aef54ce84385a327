"""`ramet port`: the address at which a program of this machine reaches a serving run."""

from __future__ import annotations

import json
from argparse import Namespace

from ramet.cli.operate.ps import print_table
from ramet.cli.render.json_output import print_json
from ramet.cli.sources.choose import full_id
from ramet.cli.sources.local import LocalSource
from ramet.core.errors import InvalidValue, Unknown


async def port(options: Namespace) -> int:
    """Print the Unix socket of a port by its name, or of all ports."""
    async with LocalSource(options.dir) as source:
        ports = await source.ports(await full_id(source, options.id))
    if options.port is not None:
        if options.port not in ports:
            raise Unknown("port", options.port, tuple(ports))
        ports = {options.port: ports[options.port]}
    elif not ports:
        raise InvalidValue("ID", options.id, "a run whose policy names ports; this one has no ports")
    if options.json:
        for name, path in ports.items():
            print_json(json.dumps({"port": name, "socket": path}))
    elif options.port is not None:
        print(ports[options.port])
    else:
        print_table(("PORT", "SOCKET"), list(ports.items()))
    return 0
