"""Errors of the storage that another attempt doesn't mend."""

from __future__ import annotations

import errno

FULL_ERRORS = (errno.ENOSPC, errno.EDQUOT)
HOPELESS_ERRORS = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.ENOENT)
