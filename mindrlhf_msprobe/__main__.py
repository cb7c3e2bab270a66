import sys

from mindrlhf_msprobe.cli import main

sys.exit(main())
