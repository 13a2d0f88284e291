"""Match expressions with formulas.

A formula is written like the expression that it matches, with slots for its parts::

    x, mean, deviation = Slot("x"), Slot("mean"), Slot("deviation")
    formula = (x - mean) * Rest("scale") / deviation + Rest("bias")
    found = match(formula, variable)

If the variable matches, ``found["x"]`` is what takes the place of `x`. A slot that occurs several
times takes equal parts. The expression may be written in many forms:

* Operands of commutative operations come in any order.
* Axes are moved and broadcast anywhere: slots take a `View`.
* A difference may be a sum with a negated term. Quotients, inverses, roots and squares may be
  powers.
* A sum or product with a `Rest` is flattened, and the rest takes all operands that are left. One
  without a rest matches a single operation with as many operands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import permutations
from typing import Any

from pytensor.scalar.basic import Neg

from dnnops.rewriting.recognize.views import (
    Part,
    Product,
    View,
    factors_of,
    powers_of,
    product_of,
    summands_of,
    terms_of,
)

__all__ = ["Call", "Match", "Pattern", "Rest", "Slot", "match", "sqr", "sqrt"]


class Match(dict[str, Any]):
    """What slots have taken, by their names.

    A slot takes a `View`, the rest of a product a `Product`, and the rest of a sum a list of signs
    and views. `product_of` reads the products that are flattened.
    """

    def __init__(self, product_of: Callable[[View], Product] = product_of, **taken: Any):
        super().__init__(taken)
        self.product_of = product_of

    def bind(self, name: str, value: Any) -> Iterator[Match]:
        """Yield the match in which a slot takes a value, unless it has taken another one."""
        if self.get(name, value) == value:
            yield Match(self.product_of, **{**self, name: value})


class Pattern:
    """A formula, or a part of one."""

    def match(self, view: View, found: Match, sign: int = 1) -> Iterator[Match]:
        """Yield `found` with further slots for each way to read ``sign * view`` as this formula."""
        raise NotImplementedError

    def _joined(self, kind: type[_Operation], other: Any, exponent: int) -> Pattern:
        others = kind.operands_of(other if isinstance(other, Pattern) else _Number(other))
        return kind([*kind.operands_of(self), *((exponent * e, x) for e, x in others)])

    def __add__(self, other: Any) -> Pattern:
        return self._joined(_Sum, other, 1)

    def __sub__(self, other: Any) -> Pattern:
        return self._joined(_Sum, other, -1)

    def __mul__(self, other: Any) -> Pattern:
        return self._joined(_Product, other, 1)

    def __truediv__(self, other: Any) -> Pattern:
        return self._joined(_Product, other, -1)

    def __or__(self, other: Pattern) -> Pattern:
        return _Either(self, other)


class Slot(Pattern):
    """A part of an expression, for which `accepts` holds."""

    def __init__(self, name: str, accepts: Callable[[View], bool] = lambda view: True):
        self.name = name
        self.accepts = accepts

    def match(self, view: View, found: Match, sign: int = 1) -> Iterator[Match]:
        for x in [view] if sign > 0 else view.inputs_of(Neg) or ():
            if self.accepts(x):
                yield from found.bind(self.name, x)


class Rest(Slot):
    """All operands of a sum or product that are left, for each of which `accepts` holds."""


class _Number(Pattern):
    def __init__(self, value: float):
        self.value = value

    def match(self, view: View, found: Match, sign: int = 1) -> Iterator[Match]:
        if (number := view.number()) is not None and sign * number == self.value:
            yield found


class _Either(Pattern):
    def __init__(self, *patterns: Pattern):
        self.patterns = patterns

    def match(self, view: View, found: Match, sign: int = 1) -> Iterator[Match]:
        for pattern in self.patterns:
            yield from pattern.match(view, found, sign)


class _Power(Pattern):
    def __init__(self, base: Pattern, exponent: float):
        self.base = base
        self.exponent = exponent

    def match(self, view: View, found: Match, sign: int = 1) -> Iterator[Match]:
        for base, exponent in powers_of(view) if sign > 0 else ():
            if exponent == self.exponent:
                yield from self.base.match(base, found)


def sqr(x: Pattern) -> Pattern:
    """Match a square."""
    return _Power(x, 2.0)


def sqrt(x: Pattern) -> Pattern:
    """Match a square root."""
    return _Power(x, 0.5)


class Call(Pattern):
    """An elementwise operation by a scalar Op of a given type."""

    def __init__(self, kind: type, *operands: Any):
        self.kind = kind
        patterns = tuple(x if isinstance(x, Pattern) else _Number(x) for x in operands)
        commutes = getattr(kind, "commutative", False)
        self.orders = list(permutations(patterns)) if commutes else [patterns]

    def match(self, view: View, found: Match, sign: int = 1) -> Iterator[Match]:
        inputs = view.inputs_of(self.kind) if sign > 0 else None
        if inputs and len(inputs) == len(self.orders[0]):
            for order in self.orders:
                yield from _match_all(order, inputs, found)


def _match_all(patterns: Sequence[Pattern], views: list[View], found: Match) -> Iterator[Match]:
    if not patterns:
        yield found
        return
    for first in patterns[0].match(views[0], found):
        yield from _match_all(patterns[1:], views[1:], first)


#: An operand of a formula with its sign or exponent, either 1 or -1.
Place = tuple[int, Pattern]


class _Operation(Pattern):
    """A sum or product of patterns, each with its sign or exponent."""

    def __init__(self, operands: list[Place]):
        self.operands = operands
        self.rest = next((x for _, x in operands if isinstance(x, Rest)), None)
        # Powers, which are rare, come first. Slots, which take almost anything, come last.
        ranks = {_Power: 0, Slot: 2}
        places = [place for place in operands if place[1] is not self.rest]
        self.places = sorted(places, key=lambda place: ranks.get(type(place[1]), 1))

    @classmethod
    def operands_of(cls, x: Pattern) -> list[Place]:
        return x.operands if isinstance(x, cls) else [(1, x)]

    def _fill(
        self, places: list[Place], parts: Sequence[Part], found: Match
    ) -> Iterator[tuple[Match, Product]]:
        """Yield each way to fill all places: the match, and the sign and the parts left."""
        if not places:
            yield found, Product(1, parts)
        for i, (exponent, view) in enumerate(parts if 0 < len(places) <= len(parts) else ()):
            for pattern, sign, factor in self._readings(places[0], exponent):
                for first in pattern.match(view, found, sign):
                    others = [*parts[:i], *parts[i + 1 :]]
                    for filled, left in self._fill(places[1:], others, first):
                        yield filled, Product(factor * left.sign, left.parts)

    def _readings(self, place: Place, exponent: int) -> list[tuple[Pattern, int, int]]:
        """Return patterns for a part, with the signs to match and those of the whole."""
        raise NotImplementedError

    def _bound(self, found: Match, left: Product, rest: Any) -> Iterator[Match]:
        """Yield the match with the rest, if there is one, or if nothing is left."""
        if self.rest is None or self.rest.name in found:
            if not left.parts and left.sign > 0:
                yield found
        elif all(self.rest.accepts(view) for view in left.views()):
            yield from found.bind(self.rest.name, rest)


class _Sum(_Operation):
    def match(self, view: View, found: Match, sign: int = 1) -> Iterator[Match]:
        terms = terms_of(view) if self.rest else summands_of(view) or ()
        for filled, left in self._fill(self.places, [(sign * s, x) for s, x in terms], found):
            yield from self._bound(filled, left, left.parts)

    def _readings(self, place: Place, exponent: int) -> list[tuple[Pattern, int, int]]:
        return [(place[1], place[0] * exponent, 1)]


class _Product(_Operation):
    def match(self, view: View, found: Match, sign: int = 1) -> Iterator[Match]:
        product: Product | None = Product(1, factors_of(view) or ())
        if self.rest is not None:
            product = found.product_of(view)
            if self.rest.name in found:
                product = product.over(found[self.rest.name])
        if product is not None:
            for filled, left in self._fill(self.places, product.parts, found):
                rest = Product(sign * product.sign * left.sign, left.parts)
                yield from self._bound(filled, rest, rest)

    def _readings(self, place: Place, exponent: int) -> list[tuple[Pattern, int, int]]:
        wanted, pattern = place
        if wanted != exponent:
            if not isinstance(pattern, _Power):
                return []
            pattern = _Power(pattern.base, -pattern.exponent)
        # A difference may be written the other way around.
        signs = (1, -1) if isinstance(pattern, _Sum) else (1,)
        return [(pattern, sign, sign) for sign in signs]


def match(formula: Pattern, x: Any) -> Match | None:
    """Return the first way to read a variable as a formula, or None."""
    return next(formula.match(View.of(x), Match()), None)
