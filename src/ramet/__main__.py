"""`python -m ramet` is `ramet`."""

import sys

from ramet.cli.main import main

sys.exit(main())
