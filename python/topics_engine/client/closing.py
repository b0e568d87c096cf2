"""Things that are used in a `with` block."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from types import TracebackType

Self = TypeVar("Self", bound="Closing")


class Closing:
    """Closed at the end of a `with` block."""

    __slots__ = ()

    def close(self) -> None:
        """Ends it. Idempotent."""
        raise NotImplementedError

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
