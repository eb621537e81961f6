"""Exact samples of discrete Laplace and Gaussian noise (Canonne, Kamath and Steinke 2020), many at a time.

Noise is a whole number, drawn from a stream of random bits by comparisons alone. No logarithm or cosine of a
floating-point number shapes it, whose rounding would show which numbers were possible without the data (Mironov 2012).

    Bernoulli(exp(-g))  a uniform number is below exp(-g): decided from its first 53 bits where these suffice, and
                        from as many more as it takes, in decimal arithmetic of as many digits, where they do not
    Laplace(t)          P[x] ~ exp(-|x| / t)          algorithm 2
    Gaussian(s)         P[x] ~ exp(-x^2 / 2 s^2)      algorithm 3: Laplace(floor(s) + 1), some of which are rejected

How long it takes depends on what is drawn, so a reader who can time single calls to the nanosecond is not covered.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import partial
from typing import TypeAlias

import numpy as np

from isthmus.data.matrices import Bools, Floats, Ints
from isthmus.privacy.random_bits import Bits

Exact: TypeAlias = Callable[[int, int], Decimal]
"""Gives the probability of the draw at a position, to so many digits."""

SLACK = 2.0**-44
"""Bound of the relative error of a probability in double precision; where it decides, digits are added."""
SPARE = 15
"""Decimal digits that are computed beyond those that count."""
WORD = 64
AT_ONCE = 1 << 18
"""Draws at a time: their memory stays small."""
FINE, FINEST = 40, 62
"""Bits of a rate, and of its denominator at most."""


def discrete_laplace(rate: Fraction, count: int, bits: Bits) -> Ints:
    """Draw whole numbers x with probability proportional to exp(-rate |x|).

    Arguments:
        rate: with a denominator of at most 2^62, see `rate_below`.
    """
    return _filled(count, lambda number: _laplace(rate, number, bits))


def discrete_gaussian(variance: Fraction, count: int, bits: Bits) -> Ints:
    """Draw whole numbers x with probability proportional to exp(-x^2 / (2 variance))."""
    scale = math.isqrt(math.floor(variance)) + 1
    rate, centre, twice = Fraction(1, scale), float(variance / scale), float(2 * variance)

    def draw(number: int) -> Ints:
        found = _laplace(rate, number, bits)
        exponent = (np.abs(found) - centre) ** 2 / twice

        def exact(at: int, digits: int) -> Decimal:
            return _exp(-((abs(int(found[at])) - variance / scale) ** 2) / (2 * variance), digits)

        return found[_bernoulli_exp(exponent, exact, bits)]

    return _filled(count, draw)


def bernoulli(probability: float, exact: Callable[[int], Decimal], count: int, bits: Bits) -> Bools:
    """Draw truths with one probability, which `exact` gives to so many digits."""
    return _below(np.full(count, probability), np.full(count, SLACK), lambda at, digits: exact(digits), bits)


def rate_below(rate: float) -> Fraction:
    """The largest rate up to this one with 40 bits and a denominator of at most 2^62: less than 1e-6 below it.

    >>> rate_below(0.1) <= Fraction(0.1), float(rate_below(0.1))
    (True, 0.0999999999999659)
    """
    power = max(0, min(FINEST, FINE - math.floor(math.log2(rate))))
    return Fraction(math.floor(Fraction(rate) * 2**power), 2**power)


def _filled(count: int, draw: Callable[[int], Ints]) -> Ints:
    """The first so many of what draws that reject some leave over."""
    found: list[Ints] = []
    missing = count
    while missing > 0:
        some = draw(min(AT_ONCE, missing + missing // 2 + 16))[:missing]
        missing -= len(some)
        found.append(some)
    return np.concatenate(found) if found else np.empty(0, np.int64)


def _laplace(rate: Fraction, count: int, bits: Bits) -> Ints:
    """Algorithm 2 with s / t = rate; fewer than `count` are left over."""
    step, scale = rate.numerator, rate.denominator
    first = _uniform(scale, count, bits)
    exponent = first / scale
    first = first[_bernoulli_exp(exponent, lambda at, digits: _exp(-Fraction(int(first[at]), scale), digits), bits)]
    whole = np.zeros(len(first), np.int64)
    going = np.arange(len(first))
    while len(going):  # V, the number of successes with probability 1 / e
        going = going[_bernoulli_exp(np.ones(len(going)), lambda at, digits: _exp(Fraction(-1), digits), bits)]
        whole[going] += 1
    # floor((U + t V) / s), without a number beyond a word
    size = whole * (scale // step) + (first // step) + (first % step + whole * (scale % step)) // step
    negative = (bits.words(len(size)) >> np.uint64(WORD - 1)).astype(bool)
    signed = np.where(negative, -size, size)
    return signed[~(negative & (size == 0))]


def _uniform(below: int, count: int, bits: Bits) -> Ints:
    """Whole numbers from 0, each equally likely; more bits are drawn for those that are too large."""
    shift, found = np.uint64(WORD - max(1, (below - 1).bit_length())), np.empty(count, np.int64)
    todo = np.arange(count)
    while len(todo):
        drawn = (bits.words(len(todo)) >> shift).astype(np.int64)
        fits = drawn < below
        found[todo[fits]] = drawn[fits]
        todo = todo[~fits]
    return found


def _bernoulli_exp(exponent: Floats, exact: Exact, bits: Bits) -> Bools:
    """Draw truths with the probabilities exp(-exponent)."""
    return _below(np.exp(-exponent), SLACK * (1 + exponent), exact, bits)


def _below(probability: Floats, slack: Floats, exact: Exact, bits: Bits) -> Bools:
    """Whether uniform numbers from [0, 1) are below these probabilities, whose relative error is at most `slack`."""
    drawn = bits.words(len(probability))
    least = (drawn >> np.uint64(11)).astype(np.float64) * 2.0**-53
    surely = least + 2.0**-53 <= probability * (1 - slack)
    never = least >= np.maximum(probability * (1 + slack), 2.0**-60)
    for at in np.flatnonzero(~surely & ~never).tolist():
        surely[at] = _settled(int(drawn[at]), partial(exact, at), bits)
    return surely


def _settled(drawn: int, exact: Callable[[int], Decimal], bits: Bits) -> bool:
    """Whether the uniform number that begins with these 64 bits is below a probability."""
    known, digits = WORD, 2 * SPARE
    while True:
        value, error = Fraction(exact(digits)), Fraction(1, 10 ** (digits - SPARE))
        if Fraction(drawn + 1, 2**known) <= value * (1 - error):
            return True
        if Fraction(drawn, 2**known) >= value * (1 + error):
            return False
        drawn, known, digits = drawn << WORD | int(bits.words(1)[0]), known + WORD, digits + 20


def _exp(power: Fraction, digits: int) -> Decimal:
    with localcontext() as context:
        context.prec, context.Emin = digits, -(10**9)
        return (Decimal(power.numerator) / Decimal(power.denominator)).exp()
