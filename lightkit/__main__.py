"""`python -m lightkit`."""

from __future__ import annotations

import sys

from lightkit.cli import main

if __name__ == "__main__":
    sys.exit(main())
