"""What a GPU costs an hour: as given for each type (`h100=2.2,b200=4.5`), else from a dated table of list prices."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from autoconfig.planning.money import Amount, parse_price
from autoconfig.specs.errors import InputError, option
from autoconfig.specs.hardware.local_gpu import find_gpu
from autoconfig.specs.json_record import AboveZero

OFFERED = ("h100-sxm-80gb", "h200-sxm-141gb", "b200-180gb")
"""GPU types that are compared where none is named: those of the table that are rented in nodes of eight."""


@dataclass(frozen=True, kw_only=True)
class GpuPrice:
    """What one GPU of a type costs."""

    gpu: str
    price_per_gpu_hour: AboveZero
    currency: str
    """ISO 4217; empty where none was said."""
    source: str
    """`given`, or whose list price it is."""
    date: str
    """Day on which a list price was read; empty where it was given."""


@cache
def listed_prices() -> Mapping[str, GpuPrice]:
    """GPU type -> its row of data/gpu_prices.toml."""
    table: dict[str, Any] = tomllib.loads((resources.files("autoconfig") / "data" / "gpu_prices.toml").read_text("utf-8"))
    return {
        gpu: GpuPrice(
            gpu=gpu,
            price_per_gpu_hour=row["price"],
            currency=table["currency"],
            source=row["source"],
            date=row["date"],
        )
        for gpu, row in table["prices"].items()
    }


def offers_of(given: object, currency: str) -> tuple[GpuPrice, ...]:
    """The GPU types that are offered and their prices, of `h100=2.2`, `h100` (its list price), a mapping or several of these;
    nothing: OFFERED at list prices. `currency`: that of the money, which every price must be in. Raises InputError."""
    offers: dict[str, GpuPrice] = {}
    for name, price in _pairs(given) if given else ((name, None) for name in OFFERED):
        gpu = find_gpu(name).id
        if gpu in offers:
            raise InputError(f"{option('gpu')} {name[:40]}: {gpu} is offered twice; give one price of each type", field="gpu")
        offers[gpu] = _listed(gpu, currency) if price is None else _given(gpu, price, currency)
    return tuple(offers.values())


def _pairs(given: Any) -> Iterator[tuple[str, object]]:
    """(GPU type, its price, None: none was said)."""
    if isinstance(given, Mapping):
        yield from ((str(name), price) for name, price in given.items())
        return
    texts: Iterable[Any] = (given,) if isinstance(given, str) else given
    for text in texts:
        if not isinstance(text, str):
            raise InputError(
                f"{option('gpu')} {text!r}: give a type like h100, or a type and its price like h100=2.2", field="gpu"
            )
        for part in filter(None, (part.strip() for part in text.split(","))):
            name, sign, price = part.partition("=")
            yield name.strip(), price if sign else None


def _listed(gpu: str, currency: str) -> GpuPrice:
    found = listed_prices().get(gpu)
    how = f"say {option('gpu')} {gpu}=PRICE, money per GPU and hour"
    if found is None:
        raise InputError(f"no price of {gpu} is known here: {how}", field="gpu")
    if currency not in ("", found.currency):
        raise InputError(f"list prices are in {found.currency}, the money is in {currency}: {how} in {currency}", field="gpu")
    return found


def _given(gpu: str, price: object, currency: str) -> GpuPrice:
    amount = priced(gpu, price)
    if amount.currency and currency and amount.currency != currency:
        raise InputError(
            f"the price of {gpu} is in {amount.currency}, the money in {currency}: give both in one currency", field="gpu"
        )
    return GpuPrice(gpu=gpu, price_per_gpu_hour=amount.value, currency=amount.currency or currency, source="given", date="")


def parse_prices(given: Any) -> float | str:
    """One price for all types as a number, or one of each as `h100-sxm-80gb=2.2,b200-180gb=4.5`; a mapping, too. Raises
    InputError."""
    if not isinstance(given, Mapping) and not (isinstance(given, str) and "=" in given):
        return priced("", given, "price").value
    found: dict[str, float] = {}
    for name, price in _pairs(given):
        if price is None:
            raise InputError(f"{option('price')}: {name[:40]} has no price; write it like h100=2.2,b200=4.5", field="price")
        found[find_gpu(name).id] = priced(name, price, "price").value
    return ",".join(f"{gpu}={price:.12g}" for gpu, price in found.items())


def price_of(prices: float | str | None, gpu: str) -> float | None:
    """The price of a type among those that `parse_prices` gave; None where it has none."""
    if not isinstance(prices, str):
        return prices
    return next((float(str(price)) for name, price in _pairs(prices) if name == gpu), None)


def price_for(prices: float | str | None, gpu: str) -> float | None:
    """The same, of a question that is about this one type. Raises InputError where only others have a price."""
    price = price_of(prices, gpu)
    if price is None and prices is not None:
        raise InputError(f"{option('price')} {str(prices)[:80]} has no price of {gpu}: add {gpu}=PRICE", field="price")
    return price


def priced(gpu: str, price: object, field: str = "gpu") -> Amount:
    """The price of one type, or of all. Raises InputError that names it, and blames a field."""
    try:
        return parse_price(price, f"price of {gpu}" if gpu else "price")
    except InputError as error:
        raise InputError(error.message, field=field) from None
