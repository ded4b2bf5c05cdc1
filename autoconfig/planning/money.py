"""Money, prices and spans of time as people write them: $3,000,000, 3e6 EUR, 2.5 million; $2.20/h; 60, 8 weeks."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from autoconfig.specs.errors import InputError

_CURRENCIES = {
    "USD": ("us$", "$", "usd", "dollars", "dollar"),
    "EUR": ("€", "eur", "euros", "euro"),
    "GBP": ("£", "gbp", "pounds", "pound"),
    "JPY": ("¥", "jpy", "yen"),
    "INR": ("₹", "inr", "rupees"),
    **{code: (code.lower(),) for code in ("CHF", "CNY", "CAD", "AUD", "SEK", "KRW", "SGD")},
}
"""ISO 4217 code -> how people write it."""
SIGNS = {"USD": "$", "EUR": "€", "GBP": "£"}
_CODES = {word: code for code, words in _CURRENCIES.items() for word in words}
_WORDS = sorted(_CODES, key=len, reverse=True)
_NUMBER = r"(?:\d{1,3}(?:[,_' ]\d{3}){1,5}|\d{1,15})(?:\.\d{0,20})?(?:e\+?\d{1,2})?"
_MAGNITUDES = {
    **dict.fromkeys(("k", "thousand"), 1e3),
    **dict.fromkeys(("m", "mm", "mn", "mio", "mil", "million", "millions"), 1e6),
    **dict.fromkeys(("b", "bn", "billion", "billions"), 1e9),
    **dict.fromkeys(("t", "trillion"), 1e12),
    "": 1.0,
}
_WITH_UNIT = re.compile(rf"\+?({_NUMBER}) ?([a-z]{{0,9}})")
_PER_HOUR = (
    *(
        f"{per}gpu{between}{hour}"
        for per in ("/", "per ")
        for between in ("-", " ", "/", " and ", "", " per ", " an ")
        for hour in ("hour", "hr", "h")
    ),
    *(f"/{hour}/gpu" for hour in ("hour", "hr", "h")),
    *(f"{per}{hour}" for per in ("/", "per ", "an ", "a ") for hour in ("hour", "hr", "h")),
)
"""What may stand behind a price."""
_DAYS = {
    **dict.fromkeys(("", "d", "day", "days"), 1.0),
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours"), 1 / 24),
    **dict.fromkeys(("w", "wk", "wks", "week", "weeks"), 7.0),
    **dict.fromkeys(("mo", "mos", "month", "months"), 30.0),
    **dict.fromkeys(("y", "yr", "yrs", "year", "years"), 365.0),
}
MOST_MONEY, MOST_DAYS, MOST_CHARACTERS = 1e15, 1e5, 60
_MONEY_HINT = "write it like 3M, $3,000,000, 3e6 EUR or 2.5 million"


@dataclass(frozen=True)
class Amount:
    """A sum of money."""

    value: float
    currency: str = ""
    """ISO 4217; empty where none was said."""

    def __str__(self) -> str:
        return money_text(self.value, self.currency)


def money_text(value: float, currency: str = "", digits: int = 3) -> str:
    """Money with about so many digits: `$2.99M`, `420k EUR`, `3.5`."""
    for factor, suffix in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k"), (1.0, "")):
        if abs(value) >= 0.9995 * factor or factor == 1.0:
            shown = value / factor
            places = max(0, digits - 1 - math.floor(math.log10(max(abs(shown), 1e-9)) + 1e-9))
            text = f"{shown:,.{min(places, 6)}f}{suffix}"
            break
    sign = SIGNS.get(currency, "")
    return f"{sign}{text}" if sign or not currency else f"{text} {currency}"


def parse_money(given: object, what: str = "money", hint: str = _MONEY_HINT) -> Amount:
    """The amount of `3M`, `$3,000,000`, `3e6 EUR`, `2.5 million dollars` or of a number. Raises InputError."""
    number, currency = _without_currency(_text(given, what, hint), what)
    match = _WITH_UNIT.fullmatch(number)
    factor = _MAGNITUDES.get(match[2]) if match else None
    if match is None or factor is None:
        raise InputError(f"{what} {str(given)[:40]!r} cannot be read: {_grouped(number) or hint}")
    value = _plain(match[1]) * factor
    if not 0 < value < MOST_MONEY:
        raise InputError(f"{what} {str(given)[:40]!r}: give an amount above 0 and below 1e15; {hint}")
    return Amount(value, currency)


def parse_price(given: object, what: str = "price") -> Amount:
    """Money per GPU and hour: `2.2`, `$2.20`, `2.20 EUR/h`, `$2.2 per GPU-hour`. Raises InputError."""
    hint = "give money per GPU and hour, above 0 and below 1,000,000, like 2.2 or $2.20"
    text = _text(given, what, hint)
    text = next((text.removesuffix(end) for end in _PER_HOUR if text.endswith(end)), text)
    amount = parse_money(text, what, hint)
    if amount.value >= 1e6:
        raise InputError(f"{what} {str(given)[:40]!r}: {hint}")
    return amount


def parse_days(given: object, what: str = "days") -> float:
    """Days of `60`, `60 days`, `8 weeks`, `2 months` (of 30 days), `36h`. Raises InputError."""
    hint = "write them like 60, 8 weeks or 2 months"
    text = _text(given, what, hint)
    match = _WITH_UNIT.fullmatch(text)
    factor = _DAYS.get(match[2]) if match else None
    if match is None or factor is None:
        raise InputError(f"{what} {text[:40]!r} cannot be read: {hint}")
    days = _plain(match[1]) * factor
    if not 0 < days < MOST_DAYS:
        raise InputError(f"{what} {text[:40]!r}: give a time above 0 and below {MOST_DAYS:,.0f} days")
    return days


def _text(given: object, what: str, hint: str) -> str:
    """In small letters, with single spaces. Raises InputError for what is no text or number."""
    text = repr(given) if isinstance(given, int | float) and not isinstance(given, bool) else given
    if not isinstance(text, str) or len(text) > MOST_CHARACTERS:
        raise InputError(f"{what} {str(given)[:40]!r} is no amount; {hint}")
    return " ".join(text.lower().split())


def _plain(number: str) -> float:
    return float(number.translate(str.maketrans("", "", ",_' ")))


def _without_currency(text: str, what: str) -> tuple[str, str]:
    """(the number with its magnitude, the currency)."""
    codes = set()
    for word in _WORDS:
        if text.startswith(word) and (not word.isalpha() or not text[len(word) : len(word) + 1].isalpha()):
            codes.add(_CODES[word])
            text = text.removeprefix(word).strip()
            break
    for word in _WORDS:
        if text.endswith(word):
            codes.add(_CODES[word])
            text = text.removesuffix(word).strip()
            break
    if len(codes) > 1:
        raise InputError(f"{what} {text!r} is in {' and '.join(sorted(codes))}: give one currency")
    return text, next(iter(codes), "")


def _grouped(text: str) -> str:
    """What to write for a number with a decimal comma or points between thousands; empty for other texts."""
    if re.fullmatch(r"\d{1,3}(\.\d{3}){2,5}", text):
        return f"write {text.replace('.', ',')}"
    if match := re.fullmatch(r"(\d{1,15}),(\d{1,2}|\d{4,9})( ?[a-z]{0,9})", text):
        return f"write {match[1]}.{match[2]}{match[3]}, with a point"
    return ""
