"""``python -m antegrad`` is the command ``antegrad``."""

import sys

from antegrad.cli import main

sys.exit(main())
