"""``python -m services.scaler``: one scaler until SIGTERM."""

import sys

from services.scaler.process import main

sys.exit(main())
