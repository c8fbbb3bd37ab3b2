"""``python -m services.worker``: one simulated worker."""

import sys

from services.worker.process import main

sys.exit(main())
