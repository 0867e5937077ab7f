"""What all tests of the package share."""

import sys
from pathlib import Path

# Tests use what lies beside them.
sys.path.insert(0, str(Path(__file__).parent))
