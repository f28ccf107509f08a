"""What the examples call: stand-ins for systems outside. Each takes a payload and returns a value."""

from __future__ import annotations

from typing import Any


def quote(payload: dict[str, Any]) -> dict[str, Any]:
    """The premium of a policy: dearer with each claim."""
    base, claims = 800, int(payload.get("claims") or 0)
    covers = ["liability", "fire", "water"][: 1 + claims]
    return {"total": base + 150 * claims, "items": [{"cover": cover, "price": 100} for cover in covers]}


def invoice(payload: dict[str, Any]) -> str:
    return f"invoice for {payload['cover']} at {payload['price']}"


def reserve(payload: dict[str, Any]) -> dict[str, Any]:
    return {"reserved": [line["sku"] for line in payload["lines"]]}


def credit(payload: dict[str, Any]) -> dict[str, Any]:
    return {"score": 720 if payload["customer"] != "c-13" else 480}


def ship(payload: dict[str, Any]) -> dict[str, Any]:
    return {"parcel": f"parcel-of-{payload['order']}"}


def make_account(payload: dict[str, Any]) -> dict[str, Any]:
    return {"login": payload["name"].lower().replace(" ", ".")}
