"""Client of the acquirer: authorises a card payment and keeps a row for every attempt."""

import logging
import time
import uuid

import httpx

log = logging.getLogger("payment_api.acquirer_client")


class AcquirerUnavailable(Exception):
    """The acquirer gave no answer that could be used."""


class Gateway:
    def __init__(self, settings, pool):
        self._settings = settings
        self._pool = pool
        self._http = httpx.Client(
            base_url=settings.base_url,
            timeout=httpx.Timeout(
                settings.read_timeout_ms / 1000,
                connect=settings.connect_timeout_ms / 1000,
            ),
        )

    def authorise(self, payment):
        """Ask the acquirer to authorise a payment; returns its reference."""
        with self._pool.connection() as connection:
            for attempt in range(1, self._settings.max_attempts + 1):
                started = time.monotonic()
                key = str(uuid.uuid4())
                try:
                    response = self._http.post(
                        "/v2/authorisations",
                        headers={"Idempotency-Key": key},
                        json={
                            "amount": payment.amount,
                            "currency": payment.currency,
                            "card_token": payment.card_token,
                            "merchant_reference": payment.id,
                        },
                    )
                except httpx.ReadTimeout:
                    waited = int((time.monotonic() - started) * 1000)
                    log.warning(
                        "attempt %d/%d for %s: no answer from acquirer after %d ms, trying again",
                        attempt,
                        self._settings.max_attempts,
                        payment.id,
                        waited,
                    )
                    self._keep_attempt(connection, payment, attempt, key, "timeout")
                    continue
                self._keep_attempt(connection, payment, attempt, key, str(response.status_code))
                if response.status_code == 201:
                    return response.json()["reference"]
                if response.status_code == 402:
                    return None
                log.warning("acquirer answered %d for %s", response.status_code, payment.id)
            raise AcquirerUnavailable(f"gave up on {payment.id} after {self._settings.max_attempts} attempts")

    def _keep_attempt(self, connection, payment, attempt, key, outcome):
        connection.execute(
            "INSERT INTO attempts (payment_id, number, idempotency_key, outcome) VALUES (%s, %s, %s, %s)",
            (payment.id, attempt, key, outcome),
        )
