"""Payments in PostgreSQL."""

import secrets
from dataclasses import dataclass


@dataclass
class Payment:
    id: str
    amount: int
    currency: str
    card_token: str
    status: str = "pending"

    @classmethod
    def from_json(cls, body):
        return cls("pay_" + secrets.token_hex(4), int(body["amount"]), body["currency"], body["card_token"])


class Store:
    def __init__(self, pool):
        self._pool = pool

    def add(self, payment):
        with self._pool.connection() as connection:
            connection.execute(
                "INSERT INTO payments (id, amount, currency, status) VALUES (%s, %s, %s, %s)",
                (payment.id, payment.amount, payment.currency, payment.status),
            )
        return payment

    def finish(self, payment, reference):
        self._set(payment, "authorised" if reference else "declined", reference)

    def get(self, payment_id):
        with self._pool.connection() as connection:
            row = connection.execute(
                "SELECT id, amount, currency, card_token, status FROM payments WHERE id = %s", (payment_id,)
            ).fetchone()
        return Payment(*row) if row else None

    def authorised(self, limit):
        with self._pool.connection() as connection:
            rows = connection.execute(
                "SELECT id, amount, currency, card_token, status FROM payments WHERE status = 'authorised' LIMIT %s",
                (limit,),
            ).fetchall()
        return [Payment(*row) for row in rows]

    def settle(self, payment, reference):
        self._set(payment, "settled", reference)

    def hold(self, payment):
        self._set(payment, "held", None)

    def _set(self, payment, status, reference):
        with self._pool.connection() as connection:
            connection.execute(
                "UPDATE payments SET status = %s, reference = coalesce(%s, reference) WHERE id = %s",
                (status, reference, payment.id),
            )
