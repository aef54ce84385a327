"""HTTP endpoints."""

import logging
import time

from starlette.responses import JSONResponse

from .acquirer_client import AcquirerUnavailable
from .connection_pool import PoolExhausted
from .payment_store import Payment

log = logging.getLogger("payment_api.payment_endpoints")


def create_payment(request, gateway, store):
    """POST /v1/payments: keep the payment, then ask the acquirer."""
    started = time.monotonic()
    try:
        payment = store.add(Payment.from_json(request.json()))
        reference = gateway.authorise(payment)
        store.finish(payment, reference)
        status = 201 if reference else 402
        body = {"id": payment.id, "status": "authorised" if reference else "declined"}
    except AcquirerUnavailable as error:
        log.error("payment failed: %s", error)
        status, body = 502, {"error": "acquirer_unavailable"}
    except PoolExhausted as error:
        log.error("payment failed: PoolExhausted: %s", error)
        status, body = 503, {"error": "busy"}
    log.info("POST /v1/payments %d %d ms", status, (time.monotonic() - started) * 1000)
    return JSONResponse(body, status_code=status)


def show_payment(request, store):
    """GET /v1/payments/{id}."""
    try:
        payment = store.get(request.path_params["id"])
    except PoolExhausted as error:
        log.error("lookup failed: PoolExhausted: %s", error)
        return JSONResponse({"error": "busy"}, status_code=503)
    if payment is None:
        return JSONResponse({"error": "not_found"}, status_code=404)
    return JSONResponse({"id": payment.id, "status": payment.status})


def health(request):
    """GET /healthz: the process answers. Says nothing about the database or the acquirer."""
    return JSONResponse({"status": "ok"})
