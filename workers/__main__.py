"""`python -m workers projector|dispatcher`: one worker process, the same as `stepwell projector|dispatcher`."""

import sys

from kernel.cli import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
