"""`python -m vitreous` is `vitreous`."""

from __future__ import annotations

import sys

from vitreous.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
