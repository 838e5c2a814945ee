"""``python -m trireme`` is ``trireme``."""

import sys

from trireme.cli import main

if __name__ == "__main__":
    sys.exit(main())
