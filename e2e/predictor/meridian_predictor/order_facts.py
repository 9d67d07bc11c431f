"""Says in prose what a get_order result holds, and says so when there is none (S-22). Pure."""

import re
from collections.abc import Mapping
from typing import Any

from meridian_predictor.language import content_stems

ORDER_ID = re.compile(r"(?<![\w-])([A-Za-z]-[0-9]{4,8})(?![\w-])", re.ASCII)
_NUMBERS = ("no", "one", "two", "three", "four", "five")
# Words that ask for what the order record itself says.
ORDER_STEMS = frozenset(content_stems("order status state payment pay paid item captured current number id"))


def order_id_in(question: str) -> str | None:
    """The order id that the question names, in capitals."""
    found = ORDER_ID.search(question)
    return found.group(1).upper() if found else None


def describe_order(order: Mapping[str, Any] | None, order_id: str | None) -> str:
    """Status and payments of the order as one or two sentences, or that there is no live data for
    it; empty when no order is meant."""
    if order is not None and order.get("ok", True) and order.get("status"):
        return _facts(order, str(order.get("orderId") or order.get("order_id") or order_id or ""))
    if order_id:
        return f"I have no access to live order data for order {order_id}, so I cannot say what its current state is."
    return ""


def has_facts(order: Mapping[str, Any] | None) -> bool:
    """Whether the tool result holds an order, not an error."""
    return order is not None and bool(order.get("ok", True)) and bool(order.get("status"))


def _facts(order: Mapping[str, Any], order_id: str) -> str:
    status = f"Order {order_id} is {_plain(order['status']).replace('_', ' ')}"
    payments = order.get("payments")
    if not isinstance(payments, list):
        return status + "."
    amounts = [_money(p) for p in payments if isinstance(p, dict)]
    if not amounts:
        return f"{status} and has no captured payment."
    ids = ", ".join(_plain(p.get("id", "")) for p in payments if isinstance(p, dict))
    count = _NUMBERS[len(amounts)] if len(amounts) < len(_NUMBERS) else str(len(amounts))
    noun = "payment" if len(amounts) == 1 else "payments"
    same = len(set(amounts)) == 1
    listed = amounts[0] + (" each" if len(amounts) > 1 else "") if same else ", ".join(amounts)
    return f"{status} and has {count} captured {noun} of {listed} ({ids})."


def _money(payment: Mapping[str, Any]) -> str:
    minor = payment.get("amountMinor", payment.get("amount_minor", 0))
    amount = f"{int(minor) / 100:.2f}" if isinstance(minor, (int, float)) else "0.00"
    return f"{amount} {_plain(payment.get('currency', 'EUR'))}"


def _plain(value: object) -> str:
    """A short value as words: what a record says may not carry sentences, markers or line breaks
    into the answer."""
    return re.sub(r"[^A-Za-z0-9_ .:-]", " ", str(value))[:40].strip()
