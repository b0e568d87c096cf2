"""What the handles stand on: verbs that take and give bytes, stated in `_core.pyi`.

The native engine is one backend. A connection to a server is another; it belongs beside this file
and needs nothing of the handles changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .._core import _Acked as Acked
    from .._core import _NewRow as NewRow
    from .._core import _Page as Page
    from .._core import _Source as Source
    from .._core import _Stream as Stream
    from .._core import _Told as Told
    from .._core import _Verbs as Backend
    from .._core import _WatchStart as WatchStart

__all__ = [
    "Acked",
    "Backend",
    "NewRow",
    "Page",
    "Source",
    "Stream",
    "Told",
    "WatchStart",
]
