"""Once a minute: settle what is authorised, send receipts, look after exchange rates."""

import logging
import smtplib

log = logging.getLogger("payment_api.settlement_worker")


def settle(store, acquirer_report, batch_size):
    """Compare our payments with the acquirer's report; settle those that agree."""
    settled = 0
    for payment in store.authorised(limit=batch_size):
        references = acquirer_report.references_of(payment.id)
        if len(references) > 1:
            log.error("settlement: %s has %d authorisations at the acquirer: held", payment.id, len(references))
            store.hold(payment)
            continue
        store.settle(payment, references[0])
        settled += 1
    log.info("settlement run finished: settled=%d", settled)


def send_receipt(settings, payment, text):
    """Mail a receipt; tried again in the next run if the server says later."""
    try:
        with smtplib.SMTP(settings["host"], timeout=10) as server:
            server.sendmail(settings["from"], payment.email, text)
    except smtplib.SMTPResponseException as error:
        log.error("receipt for %s not sent: SMTP %d %s", payment.id, error.smtp_code, error.smtp_error.decode())


def check_rates(rates, max_age_hours):
    """Warn about old exchange rates; prices are fixed at checkout, so nothing depends on them here."""
    if rates.age_hours > max_age_hours:
        log.warning("fx rates are %d hours old (limit %d)", rates.age_hours, max_age_hours)
