"""Another path of `penstock.compat.grain.experimental`, which replaces this module."""

import sys

from .. import experimental

sys.modules[__name__] = experimental
