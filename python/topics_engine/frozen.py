"""Frozen, slotted value classes that `dataclasses.is_dataclass` accepts.

The module `dataclasses` imports `inspect`, `ast` and `dis`, and compiles six methods of each class.
`import topics_engine` would spend a third of its time on that, so the classes are made here, with
one compiled method each. `dataclasses.fields`, `asdict` and `replace` take their instances: the
fields are described when they are asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, TypeVar, dataclass_transform

if TYPE_CHECKING:
    from dataclasses import Field

T = TypeVar("T")


class _Fields:
    """The attribute that makes a class a dataclass."""

    def __init__(self) -> None:
        self._made: dict[type, Any] = {}

    def __get__(self, _: object, owner: type[Frozen]) -> Any:
        if owner not in self._made:
            import dataclasses

            described = [
                (name, Any, dataclasses.field(repr=name not in owner._hidden))
                for name in owner.__match_args__
            ]
            made: Any = dataclasses.make_dataclass(owner.__name__, described)
            self._made[owner] = made.__dataclass_fields__
        return self._made[owner]


class Frozen:
    """The base of value classes: `@frozen` adds their fields."""

    __slots__ = ()
    __match_args__: ClassVar[tuple[str, ...]] = ()
    _hidden: ClassVar[frozenset[str]] = frozenset()
    """Fields that take no part in `repr`, comparisons and `hash`."""
    _unhashed: ClassVar[frozenset[str]] = frozenset()
    """Fields that take no part in `hash`, because their values have none."""
    _defaults: ClassVar[dict[str, Any]] = {}
    if TYPE_CHECKING:
        __dataclass_fields__: ClassVar[dict[str, Field[Any]]]
    else:
        __dataclass_fields__ = _Fields()

    def __setattr__(self, name: str, value: object) -> NoReturn:
        from dataclasses import FrozenInstanceError

        raise FrozenInstanceError(f"cannot assign to field {name!r}")

    def __delattr__(self, name: str) -> NoReturn:
        from dataclasses import FrozenInstanceError

        raise FrozenInstanceError(f"cannot delete field {name!r}")

    def __repr__(self) -> str:
        shown = (f"{n}={getattr(self, n)!r}" for n in self.__match_args__ if n not in self._hidden)
        return f"{type(self).__qualname__}({', '.join(shown)})"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), tuple(getattr(self, name) for name in self.__match_args__)

    def _compared(self) -> tuple[Any, ...]:
        return tuple(getattr(self, n) for n in self.__match_args__ if n not in self._hidden)


def _equal(self: Frozen, other: Any) -> Any:
    if type(other) is not type(self):
        return NotImplemented
    return self._compared() == other._compared()


def _hash(self: Frozen) -> int:
    unhashed = self._hidden | self._unhashed
    return hash(tuple(getattr(self, n) for n in self.__match_args__ if n not in unhashed))


@dataclass_transform(frozen_default=True)
def frozen(
    *, eq: bool = True, hidden: Collection[str] = (), unhashed: Collection[str] = ()
) -> Callable[[type[T]], type[T]]:
    """Makes a frozen class with slots of the annotated names, as `dataclass(frozen=True,
    slots=True)` does. The class has to derive from `Frozen`.

    Args:
        eq: whether values are compared by their fields (default), or by identity.
        hidden: fields that take no part in `repr`, comparisons and `hash`.
        unhashed: fields that take no part in `hash`.
    """

    def made(cls: type[Any]) -> type[Any]:
        own = tuple(cls.__annotations__)
        namespace = {
            name: value
            for name, value in vars(cls).items()
            if name not in ("__dict__", "__weakref__")
        }
        defaults = {name: namespace.pop(name) for name in own if name in namespace}
        fields = (*cls.__match_args__, *own)
        namespace |= {
            "__slots__": own,
            "__match_args__": fields,
            "_hidden": cls._hidden | frozenset(hidden),
            "_unhashed": cls._unhashed | frozenset(unhashed),
            "_defaults": cls._defaults | defaults,
        }
        if eq:
            namespace |= {"__eq__": _equal, "__hash__": _hash}
        metaclass: Any = type(cls)
        done: type[Any] = metaclass(cls.__name__, cls.__bases__, namespace)
        done.__init__ = _init(done)
        return done

    return made


def _init(cls: type[Any]) -> Callable[..., None]:
    """The constructor: it sets the slots past `__setattr__`, which refuses."""
    names = cls.__match_args__
    scope: dict[str, Any] = {f"set_{name}": getattr(cls, name).__set__ for name in names}
    scope["defaults"] = cls._defaults
    taken = (f"{n}=defaults[{n!r}]" if n in cls._defaults else n for n in names)
    body = "\n".join(f"    set_{name}(self, {name})" for name in names)
    exec(f"def __init__(self, {', '.join(taken)}):\n{body}", scope)
    init: Callable[..., None] = scope["__init__"]
    init.__qualname__ = f"{cls.__qualname__}.__init__"
    return init
